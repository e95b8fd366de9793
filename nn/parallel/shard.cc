// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/shard.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "apogee/core/error.h"

namespace apogee::nn::parallel {
namespace {

// Elements [begin, begin + size) of the dim, of which a rank holds up to `part`: the local elements
// [local, local + part).
struct Section {
  int64_t begin = 0, size = 0, part = 0, local = 0;

  int64_t first(int rank) const { return begin + std::min(rank * part, size); }
  int64_t length(int rank) const {
    return std::min((rank + 1) * part, size) - std::min(rank * part, size);
  }
};

// The logical tensor viewed as [outer, size, inner], and the sections of `size`.
struct Cut {
  int dim = 0;
  int64_t outer = 1, size = 1, inner = 1;
  std::vector<Section> sections;

  // Elements of the dim that a rank holds, padding included.
  int64_t local() const { return sections.back().local + sections.back().part; }
  Shape WholeView() const { return {outer, size, inner}; }
  Shape LocalView() const { return {outer, local(), inner}; }
};

// The sizes of the sections of a dim of `size` elements.
std::vector<int64_t> SectionSizes(const TensorShard& shard, const Shape& logical, int dim) {
  const int64_t size = logical[dim];
  const std::vector<int64_t>& units = shard.section_units;
  if (units.empty()) {
    APOGEE_CHECK(shard.sections >= 1, "shard of ", logical, ": sections is ", shard.sections,
                 ", must be at least 1");
    APOGEE_CHECK(size % shard.sections == 0, "shard of ", logical, ": dim ", dim, " of ", size,
                 " does not consist of ", shard.sections, " equal sections");
    return std::vector<int64_t>(static_cast<size_t>(shard.sections), size / shard.sections);
  }
  APOGEE_CHECK(std::ranges::min(units) >= 1, "shard of ", logical, ": section_units are ",
               UnitsText(units), ", must be at least 1");
  const int64_t sum = std::accumulate(units.begin(), units.end(), int64_t{0});
  APOGEE_CHECK(size % sum == 0, "shard of ", logical, ": dim ", dim, " of ", size,
               " does not consist of ", UnitsText(units), " equal units");
  std::vector<int64_t> sizes;
  for (const int64_t count : units) sizes.push_back(count * (size / sum));
  return sizes;
}

Cut CutOf(const TensorShard& shard, const Shape& logical, int tp) {
  APOGEE_CHECK(tp >= 1, "shard of ", logical, ": tp is ", tp, ", must be at least 1");
  Cut cut;
  cut.dim = logical.Normalize(shard.dim);
  cut.size = logical[cut.dim];
  for (int d = 0; d < cut.dim; ++d) cut.outer *= logical[d];
  for (int d = cut.dim + 1; d < logical.rank(); ++d) cut.inner *= logical[d];
  const std::vector<int64_t> sizes = SectionSizes(shard, logical, cut.dim);
  APOGEE_CHECK(!shard.pad || (cut.dim == 0 && sizes.size() == 1), "shard of ", logical,
               ": only dim 0 in one section can be padded, not dim ", cut.dim, " in ",
               sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool units = !shard.section_units.empty();
    APOGEE_CHECK(!units || shard.section_units[i] % tp == 0, "shard of ", logical, ": tp ", tp,
                 " does not divide each of the ", UnitsText(shard.section_units), " units of dim ",
                 cut.dim);
    APOGEE_CHECK(units || shard.pad || sizes[i] % tp == 0, "shard of ", logical, ": tp ", tp,
                 " does not divide dim ", cut.dim, " (", sizes.size(), " sections of ", sizes[i],
                 ")");
    const int64_t begin = i == 0 ? 0 : cut.sections.back().begin + cut.sections.back().size;
    const int64_t local = i == 0 ? 0 : cut.local();
    cut.sections.push_back(
        {.begin = begin, .size = sizes[i], .part = (sizes[i] + tp - 1) / tp, .local = local});
  }
  return cut;
}

void CheckRank(int rank, int tp) {
  APOGEE_CHECK(rank >= 0 && rank < tp, "shard: rank ", rank, " is outside a group of ", tp);
}

}  // namespace

std::string UnitsText(const std::vector<int64_t>& section_units) {
  std::string text;
  for (const int64_t units : section_units) {
    text += (text.empty() ? "" : ", ") + std::to_string(units);
  }
  return text;
}

Shape LocalShape(const TensorShard& shard, const Shape& logical, int tp) {
  const Cut cut = CutOf(shard, logical, tp);
  Shape shape = logical;
  shape.Set(cut.dim, cut.local());
  return shape;
}

Tensor CutLocal(const TensorShard& shard, const Tensor& whole_in, int rank, int tp) {
  CheckRank(rank, tp);
  const Cut cut = CutOf(shard, whole_in.shape(), tp);
  const Shape shape = LocalShape(shard, whole_in.shape(), tp);
  const Tensor whole = whole_in.Detach().Contiguous().View(cut.WholeView());
  const bool padded = cut.sections[0].length(rank) < cut.sections[0].part;
  const Tensor local = padded ? Tensor::Zeros(shape, whole.dtype(), whole.context())
                              : Tensor::Empty(shape, whole.dtype(), whole.context());
  for (const Section& section : cut.sections) {
    const int64_t length = section.length(rank);
    if (length == 0) continue;
    local.View(cut.LocalView())
        .Slice(1, section.local, length)
        .CopyFrom(whole.Slice(1, section.first(rank), length));
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
    const Tensor part = local.Detach().Contiguous().View(cut.LocalView());
    for (const Section& section : cut.sections) {
      const int64_t length = section.length(rank);
      if (length == 0) continue;
      whole.View(cut.WholeView())
          .Slice(1, section.first(rank), length)
          .CopyFrom(part.Slice(1, section.local, length));
    }
  }
  return whole;
}

Tensor CutByLayout(const Tensor& whole, const Layout& layout) {
  if (layout.is_whole()) return whole;
  const Tensor flat = whole.View({whole.numel()});
  const Tensor local = Tensor::Empty({layout.local_numel()}, whole.dtype(), whole.context());
  int64_t at = 0;
  for (const Segment& segment : layout.segments()) {
    local.Slice(0, at, segment.length).CopyFrom(flat.Slice(0, segment.begin, segment.length));
    at += segment.length;
  }
  return local;
}

Tensor AssembleByLayouts(const Shape& logical, std::span<const Layout> layouts,
                         const Tensor& locals) {
  const Tensor whole = Tensor::Empty({logical.numel()}, locals.dtype(), locals.context());
  for (size_t row = 0; row < layouts.size(); ++row) {
    const Tensor local = locals.Slice(0, static_cast<int64_t>(row), 1).View({locals.size(1)});
    int64_t at = 0;
    for (const Segment& segment : layouts[row].segments()) {
      whole.Slice(0, segment.begin, segment.length).CopyFrom(local.Slice(0, at, segment.length));
      at += segment.length;
    }
  }
  return whole.View(logical);
}

Layout LayoutOf(const TensorShard& shard, const Shape& logical, int rank, int tp,
                int num_replicas) {
  CheckRank(rank, tp);
  const Cut cut = CutOf(shard, logical, tp);
  std::vector<Segment> segments;
  int64_t multiple = 0;  // of all parts
  for (const Section& section : cut.sections) {
    multiple = std::gcd(multiple, section.part * cut.inner);
  }
  for (int64_t block = 0; block < cut.outer; ++block) {
    for (const Section& section : cut.sections) {
      const int64_t begin = (block * cut.size + section.first(rank)) * cut.inner;
      const int64_t length = section.length(rank) * cut.inner;
      if (length == 0) continue;
      if (!segments.empty() && segments.back().begin + segments.back().length == begin) {
        segments.back().length += length;
      } else {
        segments.push_back({begin, length});
      }
    }
  }
  return Layout(logical, {.segments = std::move(segments),
                          .num_replicas = num_replicas,
                          .cut_multiple = std::max<int64_t>(multiple, 1)});
}

}  // namespace apogee::nn::parallel
