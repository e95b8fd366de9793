// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/shard.h"

#include <algorithm>
#include <vector>

#include "apogee/core/error.h"

namespace apogee::nn::parallel {
namespace {

// The logical tensor viewed as [outer, sections, section, inner]; a rank holds up to `part` of each
// `section`.
struct Cut {
  int64_t outer = 1, sections = 1, section = 1, inner = 1, part = 1;
  int dim = 0;

  int64_t begin(int rank) const { return std::min(rank * part, section); }
  int64_t length(int rank) const { return std::min(part, section - begin(rank)); }
  Shape WholeView() const { return {outer, sections, section, inner}; }
  Shape LocalView() const { return {outer, sections, part, inner}; }
};

Cut CutOf(const TensorShard& shard, const Shape& logical, int tp) {
  APOGEE_CHECK(tp >= 1, "shard of ", logical, ": tp is ", tp, ", must be at least 1");
  APOGEE_CHECK(shard.sections >= 1, "shard of ", logical, ": sections is ", shard.sections,
               ", must be at least 1");
  Cut cut;
  cut.dim = logical.Normalize(shard.dim);
  const int64_t size = logical[cut.dim];
  APOGEE_CHECK(size % shard.sections == 0, "shard of ", logical, ": dim ", cut.dim, " of ", size,
               " does not consist of ", shard.sections, " equal sections");
  for (int d = 0; d < cut.dim; ++d) cut.outer *= logical[d];
  for (int d = cut.dim + 1; d < logical.rank(); ++d) cut.inner *= logical[d];
  cut.sections = shard.sections;
  cut.section = size / shard.sections;
  APOGEE_CHECK(!shard.pad || (cut.dim == 0 && shard.sections == 1), "shard of ", logical,
               ": only dim 0 in one section can be padded, not dim ", cut.dim, " in ",
               shard.sections);
  APOGEE_CHECK(shard.pad || cut.section % tp == 0, "shard of ", logical, ": tp ", tp,
               " does not divide dim ", cut.dim, " (", shard.sections, " sections of ", cut.section,
               ")");
  cut.part = (cut.section + tp - 1) / tp;
  return cut;
}

void CheckRank(int rank, int tp) {
  APOGEE_CHECK(rank >= 0 && rank < tp, "shard: rank ", rank, " is outside a group of ", tp);
}

}  // namespace

Shape LocalShape(const TensorShard& shard, const Shape& logical, int tp) {
  const Cut cut = CutOf(shard, logical, tp);
  Shape shape = logical;
  shape.Set(cut.dim, cut.sections * cut.part);
  return shape;
}

Tensor CutLocal(const TensorShard& shard, const Tensor& whole, int rank, int tp) {
  CheckRank(rank, tp);
  const Cut cut = CutOf(shard, whole.shape(), tp);
  const Shape shape = LocalShape(shard, whole.shape(), tp);
  const int64_t length = cut.length(rank);
  Tensor local = length == cut.part ? Tensor::Empty(shape, whole.dtype(), whole.context())
                                    : Tensor::Zeros(shape, whole.dtype(), whole.context());
  if (length > 0) {
    local.View(cut.LocalView())
        .Slice(2, 0, length)
        .CopyFrom(
            whole.Detach().Contiguous().View(cut.WholeView()).Slice(2, cut.begin(rank), length));
  }
  return local;
}

Tensor Assemble(const TensorShard& shard, const Shape& logical, std::span<const Tensor> locals) {
  const int tp = static_cast<int>(locals.size());
  const Cut cut = CutOf(shard, logical, tp);
  const Shape local_shape = LocalShape(shard, logical, tp);
  const Tensor whole = Tensor::Empty(logical, locals[0].dtype(), locals[0].context());
  for (int rank = 0; rank < tp; ++rank) {
    const Tensor& local = locals[static_cast<size_t>(rank)];
    APOGEE_CHECK(local.shape() == local_shape, "assemble ", logical, ": rank ", rank, " of ", tp,
                 " has ", local.shape(), ", must be ", local_shape);
    const int64_t length = cut.length(rank);
    if (length == 0) continue;
    whole.View(cut.WholeView())
        .Slice(2, cut.begin(rank), length)
        .CopyFrom(local.Detach().Contiguous().View(cut.LocalView()).Slice(2, 0, length));
  }
  return whole;
}

Layout LayoutOf(const TensorShard& shard, const Shape& logical, int rank, int tp,
                int num_replicas) {
  CheckRank(rank, tp);
  const Cut cut = CutOf(shard, logical, tp);
  std::vector<Segment> segments;
  const int64_t length = cut.length(rank) * cut.inner;
  for (int64_t block = 0; length > 0 && block < cut.outer * cut.sections; ++block) {
    const int64_t begin = (block * cut.section + cut.begin(rank)) * cut.inner;
    if (!segments.empty() && segments.back().begin + segments.back().length == begin) {
      segments.back().length += length;
    } else {
      segments.push_back({begin, length});
    }
  }
  return Layout(logical, {.segments = std::move(segments),
                          .num_replicas = num_replicas,
                          .cut_multiple = std::max<int64_t>(cut.part * cut.inner, 1)});
}

}  // namespace apogee::nn::parallel
