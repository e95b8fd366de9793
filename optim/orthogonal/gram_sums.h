// SPDX-License-Identifier: Apache-2.0

// Newton-Schulz of matrices whose parts are on several ranks, while no rank holds them whole.
//
//   GramIteration iteration(own, *PartsForGram(layout, matrices), settings);   // every rank
//   iteration.SetLargest(largest);                    // of all ranks' iteration.Largest()
//   for (int step = 0; step < num_steps; ++step) {
//     iteration.Write(sums);                          // X X^T of this rank's columns
//     group.AllReduce(sums);
//     iteration.Advance(sums);                        // X = a X + (b A + c A^2) X, own columns
//   }
//   Tensor mine = iteration.Result({1});              // this rank's elements of O
//
// The longer dim of each matrix is cut: n of [m, n], or m, and then X is the transpose. A = X X^T
// is a sum over the columns of X. Given A, columns advance by themselves. A step thus sums m m
// numbers over the ranks; the other way gathers m n numbers at an owner (owners.h) and sends m n
// back. Every rank computes A A. The elements are first divided by a power of two near the largest,
// so that no square underflows. The result is that of Orthogonalized, up to the order of sums.
#ifndef APOGEE_OPTIM_ORTHOGONAL_GRAM_SUMS_H_
#define APOGEE_OPTIM_ORTHOGONAL_GRAM_SUMS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "apogee/optim/orthogonal/matrices.h"
#include "apogee/optim/orthogonal/newton_schulz.h"

namespace apogee::optim {

struct GramParts {
  std::vector<MatrixPart> own;  // of this rank's elements; none if it has no elements
  bool tall = false;            // rows are cut, else columns
  std::vector<int64_t> sides;   // rows of A, by matrix
  int64_t num_parts = 1;        // of the longer dim, over the ranks
  // Length of the sums of one step.
  int64_t NumSums() const;
};

// How `layout` cuts the matrices of a parameter; nothing if not all of them are cut along their
// longer dim. The answer follows from the layout's cut_multiple, so ranks agree on it.
std::optional<GramParts> PartsForGram(const Layout& layout,
                                      const std::vector<MatrixPart>& matrices);

// Whether `steps` sums cost less than an owner. Numbers sent and operations per rank count, a
// number as kOperationsPerNumber operations.
bool GramCostsLess(const GramParts& parts, const std::vector<MatrixPart>& matrices, int64_t steps);
constexpr double kOperationsPerNumber = 1000;

class GramIteration {
 public:
  // `own`: this rank's elements, flat.
  GramIteration(const Tensor& own, GramParts parts, NewtonSchulz settings);

  // The largest absolute value of this rank's elements.
  double Largest() const;
  void SetLargest(double largest);
  // Writes NumSums() numbers; leaves them alone if this rank has no elements.
  void Write(const Tensor& to) const;
  void Advance(const Tensor& sums);
  // O times `scales`, a factor by matrix, in the order of the own elements. Undefined if there are
  // none.
  Tensor Result(const std::vector<double>& scales) const;

 private:
  Tensor own_;
  GramParts parts_;
  NewtonSchulz settings_;
  double power_ = 1;       // of two
  std::vector<Tensor> x_;  // [side, columns of this rank]
  size_t step_ = 0;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ORTHOGONAL_GRAM_SUMS_H_
