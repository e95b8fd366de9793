// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/orthogonal/matrices.h"

#include <algorithm>
#include <array>

#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/orthogonal/matrix_rule.h"

namespace apogee::optim {
namespace {

// Parts of names between dots: embeddings and output layers of the models that we know.
constexpr std::array kTables = {"wte",
                                "wpe",
                                "embed_tokens",
                                "embed_positions",
                                "embed_in",
                                "embed_out",
                                "lm_head",
                                "embeddings",
                                "word_embeddings",
                                "position_embeddings",
                                "token_type_embeddings",
                                "decoder",
                                "classifier",
                                "head"};

}  // namespace

int64_t RowsOf(const Shape& shape, bool batch_convolutions) {
  const int rank = shape.rank();
  return rank == 3 || (rank > 3 && batch_convolutions) ? shape[rank - 2] : shape[0];
}

std::vector<MatrixPart> MatricesIn(const Shape& shape, const std::vector<int64_t>& sections,
                                   bool batch_convolutions) {
  const int64_t rows = RowsOf(shape, batch_convolutions);
  const bool is_batch = shape.rank() == 3 || (shape.rank() > 3 && batch_convolutions);
  const int64_t cols = is_batch ? shape[shape.rank() - 1] : shape.numel() / shape[0];
  const std::vector<int64_t> counts = sections.empty() ? std::vector<int64_t>{rows} : sections;
  std::vector<MatrixPart> parts;
  for (int64_t row = 0; row * cols < shape.numel();) {
    for (const int64_t count : counts) {
      parts.push_back({row, count, cols});
      row += count;
    }
  }
  return parts;
}

bool IsTableName(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (std::ranges::find(kTables, part) != kTables.end()) return true;
    begin = end + 1;
  }
  return false;
}

Tensor Flat(const Tensor& tensor, int64_t numel) {
  return tensor.View({tensor.numel()}).Slice(0, 0, numel);
}

Tensor OwnOf(const ParamView& view, const Tensor& whole) {
  const Layout& layout = view.layout();
  if (layout.is_whole()) return whole;
  return Flat(view.CutToLayout(whole, Layout(layout.logical_shape())), layout.local_numel());
}

void ApplyUpdate(const ActiveParam& param, const Tensor& update, double lr, double decay,
                 DecayKind kind) {
  UpdateChunk chunk = MakeUpdateChunk<UpdateChunk>(param);
  chunk.grad = update.raw();
  chunk.grad_dtype = update.dtype();
  const DeviceContext& context = *param.grad.context();
  OptimKernelsFor(context).low_rank_update(context,
                                           {.dtype = update.dtype(),
                                            .decay_kind = decay > 0 ? kind : DecayKind::kNone,
                                            .scale = -lr,
                                            .decay = decay,
                                            .decay_rate = {1},
                                            .gate = nullptr,
                                            .chunks = {&chunk, 1}});
}

}  // namespace apogee::optim
