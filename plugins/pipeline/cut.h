// SPDX-License-Identifier: Apache-2.0

// Cut: which pieces of a chain each part of a pipeline has, and who holds which parameter.
//
//   const Cut cut(model, shape, {});                       // by declared cost, the longest part
//   least cut.begin();                                           // {0, 3, 5}: two parts of five
//   pieces cut.HoldersOf(*parameter);                             // stages, ascending: {0, 3} for
//   a tied one
//
// A pure function of the model and the options: all ranks cut alike. Parameters that no piece uses
// are held by stage 0.
#ifndef APOGEE_PLUGINS_PIPELINE_CUT_H_
#define APOGEE_PLUGINS_PIPELINE_CUT_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "apogee/nn/chain.h"
#include "apogee/plugins/pipeline/schedule.h"

namespace apogee::pipeline {

// Where each of `parts` ranges of `costs` begins, and, last, their number: the most expensive one
// costs as little as it can, and none is empty. Of several such cuts one whose earlier parts are
// cheap: there backward comes last.
std::vector<int> BalancedCut(std::span<const double> costs, int parts);

struct CutOptions {
  // One cost per piece, in any unit, in place of those that the model declares.
  std::vector<double> piece_costs = {};
  // How many pieces each part has, in place of a balanced cut.
  std::vector<int> pieces_per_part = {};
};

// What keeps a model from being cut so, with the numbers; empty: nothing.
std::vector<std::string> CutProblems(nn::Module& model, const PipelineShape& shape,
                                     const CutOptions& options);

class Cut {
 public:
  // There are no CutProblems.
  Cut(nn::Chain& model, const PipelineShape& shape, const CutOptions& options);

  const std::vector<int>& begin() const { return begin_; }
  // The pieces of a part.
  std::span<const nn::Piece> Pieces(int part) const;
  // Stages that use a parameter; several for a tied one.
  const std::vector<int>& HoldersOf(const autograd::Parameter& parameter) const {
    return holders_.at(&parameter);
  }

 private:
  nn::Chain& model_;
  std::vector<int> begin_;
  std::map<const autograd::Parameter*, std::vector<int>> holders_;
};

// What forward of each piece takes here, in seconds, the least of `repeats` runs without a graph:
// CutOptions::piece_costs for a model whose pieces do not take what their parameters say. Rank 0's
// are what all ranks should use.
std::vector<double> MeasurePieceCosts(nn::Chain& model, const Tensor& input, int repeats = 3);

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_CUT_H_
