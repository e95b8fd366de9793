// SPDX-License-Identifier: Apache-2.0

// Shared by the optimizers with factored second moments (Adafactor, CAME): the blocks of rows that
// their kernels work on, and the row and column factors, which live from one phase of a step to the
// next.
//
//   work.Prepare(params);                                          // in the first phase
//   FactoredChunk chunk = work.Chunk(params[i], i);
//   FactorChunk moments = work.Moments(params[i], i, "exp_avg_sq_row", "exp_avg_sq_col", sums);
#ifndef APOGEE_OPTIM_FACTORED_FACTORED_H_
#define APOGEE_OPTIM_FACTORED_FACTORED_H_

#include <vector>

#include "apogee/optim/core/layerwise.h"
#include "apogee/optim/factored/factored_kernels.h"

namespace apogee::optim {

// Whether the parameter has at least two dims. The last two are rows and columns, earlier ones a
// batch.
inline bool IsFactored(const ParamView& view) { return view.layout().logical_shape().rank() >= 2; }
// The length of the row and column sums of a parameter together; 0 if it is not factored.
int64_t NumFactors(const ParamView& view);

// The factored ones among parameters whose entries begin with `first`.
struct Factored {
  Factored(std::span<const ActiveParam> all, size_t first) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (!IsFactored(*all[i].view)) continue;
      params.push_back(all[i]);
      entries.push_back(first + i);
    }
  }
  // Of an element of `params`.
  size_t EntryOf(const ActiveParam& param) const {
    return entries[static_cast<size_t>(&param - params.data())];
  }
  std::vector<ActiveParam> params;
  std::vector<size_t> entries;
};

class FactoredWork {
 public:
  // Prepares for the active parameters of this step. `entry` below is an index into `params`.
  void Prepare(std::span<const ActiveParam> params);

  // A chunk with everything set except the rate, beta2 and the sums. exp_avg is null if the
  // parameter has no such state.
  FactoredChunk Chunk(const ActiveParam& param, size_t entry) const;
  // The averages in the states `row` and `column`. Their factors are those that Chunk() reads.
  FactorChunk Moments(const ActiveParam& param, size_t entry, const char* row, const char* column,
                      const void* sums) const;

 private:
  struct Work {
    std::vector<RowBlock> blocks;
    Tensor factors;  // undefined if not factored
  };
  std::vector<Work> work_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_FACTORED_H_
