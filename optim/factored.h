// SPDX-License-Identifier: Apache-2.0

// What the optimizers with factored second moments (Adafactor, CAME) share: the blocks of rows that
// their kernels walk and the factors that live from one phase of a step to the next.
//
//   work.Prepare(params);                                          // at the first phase
//   FactoredChunk chunk = work.Chunk(params[i], i);
//   FactorChunk moments = work.Moments(params[i], i, "exp_avg_sq_row", "exp_avg_sq_col", sums);
#ifndef APOGEE_OPTIM_FACTORED_H_
#define APOGEE_OPTIM_FACTORED_H_

#include <vector>

#include "apogee/optim/layerwise.h"

namespace apogee::optim {

// At least two dimensions: the last two are rows and columns, those before them a batch.
inline bool IsFactored(const ParamView& view) { return view.layout().logical_shape().rank() >= 2; }
// Numbers in the row and column sums of a parameter; 0 when it is not factored.
int64_t NumFactors(const ParamView& view);

class FactoredWork {
 public:
  // For the active parameters of this step, entry after entry.
  void Prepare(std::span<const ActiveParam> params);

  // Everything but lr, beta2 and the sums. `exp_avg` is bound when the parameter has that state.
  FactoredChunk Chunk(const ActiveParam& param, size_t entry) const;
  // The averages in the states `row` and `column`, the factors of Chunk().
  FactorChunk Moments(const ActiveParam& param, size_t entry, const char* row, const char* column,
                      const void* sums) const;

 private:
  struct Work {
    std::vector<RowBlock> blocks;
    Tensor factors;  // undefined when not factored
  };
  std::vector<Work> work_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_H_
