// SPDX-License-Identifier: Apache-2.0

// Cut: which pieces of a chain each part of a pipeline has, and which stages hold which parameter.
//
//   const Cut cut(model, shape, {});      // by declared cost: the longest part is minimal
//   cut.begin();                          // {0, 3, 5}: two parts of five pieces
//   cut.HoldersOf(*parameter);            // stages, ascending: {0, 3} for a tied one
//
// The result depends only on the model and the options, so all ranks get the same cut. Stage 0
// holds parameters that no piece uses.
#ifndef APOGEE_PLUGINS_PIPELINE_CUT_H_
#define APOGEE_PLUGINS_PIPELINE_CUT_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "apogee/nn/chain.h"
#include "apogee/plugins/pipeline/schedule.h"

namespace apogee::pipeline {

// Returns where each of `parts` ranges of `costs` begins, and then the number of costs. No range is
// empty, and the most expensive one costs as little as possible. Among several such cuts it takes
// one with cheap early parts, because backward ends there.
std::vector<int> BalancedCut(std::span<const double> costs, int parts);

struct CutOptions {
  // One cost per piece, in any unit, instead of the costs that the model declares.
  std::vector<double> piece_costs = {};
  // The number of pieces of each part, instead of a balanced cut.
  std::vector<int> pieces_per_part = {};
};

// Returns the reasons why a model cannot be cut in this way, with the numbers. Empty: it can.
std::vector<std::string> CutProblems(nn::Module& model, const PipelineShape& shape,
                                     const CutOptions& options);

class Cut {
 public:
  // Requires that CutProblems returns nothing.
  Cut(nn::Chain& model, const PipelineShape& shape, const CutOptions& options);

  const std::vector<int>& begin() const { return begin_; }
  // The pieces of a part.
  std::span<const nn::Piece> Pieces(int part) const;
  // The stages that use a parameter; several for a tied one.
  const std::vector<int>& HoldersOf(const autograd::Parameter& parameter) const {
    return holders_.at(&parameter);
  }

 private:
  nn::Chain& model_;
  std::vector<int> begin_;
  std::map<const autograd::Parameter*, std::vector<int>> holders_;
};

// Measures the forward of each piece on this rank, in seconds: the least of `repeats` runs without
// a graph. Use it as CutOptions::piece_costs if a model's pieces do not take time in proportion to
// their parameters. All ranks must use the same costs, for instance rank 0's.
std::vector<double> MeasurePieceCosts(nn::Chain& model, const Tensor& input, int repeats = 3);

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_CUT_H_
