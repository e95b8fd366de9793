// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/factored.h"

#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {

int64_t NumFactors(const ParamView& view) {
  const MatrixView matrix = view.layout().matrix();
  return IsFactored(view) ? matrix.batch * (matrix.rows + matrix.cols) : 0;
}

void FactoredWork::Prepare(std::span<const ActiveParam> params) {
  work_.clear();
  for (const ActiveParam& param : params) {
    const ParamView& view = *param.view;
    Work work{RowBlocks(view.layout()), {}};
    if (IsFactored(view)) {
      work.factors = Tensor::Zeros({NumFactors(view)}, view.compute_dtype(), view.value().context(),
                                   MemoryCategory::kWorkspace);
    }
    work_.push_back(std::move(work));
  }
}

FactoredChunk FactoredWork::Chunk(const ActiveParam& param, size_t entry) const {
  const ParamView& view = *param.view;
  const Work& work = work_[entry];
  const MatrixView matrix = view.layout().matrix();
  FactoredChunk chunk = MakeUpdateChunk<FactoredChunk>(param);
  chunk.blocks = work.blocks;
  chunk.row_stride = matrix.cols;
  chunk.numel = view.layout().logical_shape().numel();
  if (IsFactored(view)) {
    chunk.rows = matrix.batch * matrix.rows;
    chunk.columns = matrix.batch * matrix.cols;
    chunk.factors = work.factors.raw();
  } else {
    chunk.exp_avg_sq = view.state("exp_avg_sq").raw();
  }
  if (const Tensor exp_avg = view.state("exp_avg"); exp_avg.defined())
    chunk.exp_avg = exp_avg.raw();
  return chunk;
}

FactorChunk FactoredWork::Moments(const ActiveParam& param, size_t entry, const char* row,
                                  const char* column, const void* sums) const {
  return {.matrix = param.view->layout().matrix(),
          .row = param.view->state(row).raw(),
          .column = param.view->state(column).raw(),
          .sums = sums,
          .factors = work_[entry].factors.raw(),
          .beta2 = 0};
}

}  // namespace apogee::optim
