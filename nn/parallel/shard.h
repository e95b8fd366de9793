// SPDX-License-Identifier: Apache-2.0

// TensorShard: how a whole (logical) parameter is sharded over the ranks of a tensor-parallel
// group.
//
//   const TensorShard column{.dim = 1};                     // Conv1D weight [in, out] by columns
//   const TensorShard qkv{.dim = 1, .sections = 3};         // fused q, k, v: each third by tp
//   const TensorShard grouped{.section_units = {8, 2, 2}};  // 8 heads of q, then 2 of k, 2 of v
//   const TensorShard vocab{.dim = 0, .pad = true};         // rows that tp need not divide
//   Tensor local = CutLocal(qkv, whole, rank, tp);
//   Layout layout = LayoutOf(qkv, whole.shape(), rank, tp);   // positions of its elements
//
// The dim consists of `sections` equal sections, or of sections of as many units as section_units
// says. Each section is cut into tp equal parts; a rank holds its part of every section, one after
// the other. Nothing here communicates.
//
// With `pad`, part sizes are rounded up, and the local tensors of the last ranks end in rows of
// zeros that belong to no logical element. `pad` needs dim 0 and one section, since a Layout has
// padding only at the end. Every function throws Error, with the numbers, if the shard does not fit
// the shape.
#ifndef APOGEE_NN_PARALLEL_SHARD_H_
#define APOGEE_NN_PARALLEL_SHARD_H_

#include <span>
#include <string>
#include <vector>

#include "apogee/layout/layout.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

struct TensorShard {
  int dim = 0;  // negative: from the end
  int sections = 1;
  bool pad = false;
  // If not empty, in place of `sections`: the number of units of each section. The dim is a
  // multiple of their sum, and tp divides each of them.
  std::vector<int64_t> section_units = {};
  friend bool operator==(const TensorShard&, const TensorShard&) = default;
};

// "8, 2, 2": for messages.
std::string UnitsText(const std::vector<int64_t>& section_units);

// The shape of the local tensor, padding included; the same on every rank.
Shape LocalShape(const TensorShard& shard, const Shape& logical, int tp);

// The local tensor of rank `rank`: a contiguous copy of its elements of `whole`.
Tensor CutLocal(const TensorShard& shard, const Tensor& whole, int rank, int tp);

// The whole tensor, of shape `logical`, from the local tensors of all ranks, in rank order.
Tensor Assemble(const TensorShard& shard, const Shape& logical, std::span<const Tensor> locals);

// The elements of a whole tensor that a layout names, one after the other; the tensor itself if
// these are all. And back: `locals` has a row per layout, whose elements may overlap.
Tensor CutByLayout(const Tensor& whole, const Layout& layout);
Tensor AssembleByLayouts(const Shape& logical, std::span<const Layout> layouts,
                         const Tensor& locals);

// The segments list the local tensor's elements in order, without padding. num_replicas: the number
// of ranks that hold each element (the other axes of the mesh).
Layout LayoutOf(const TensorShard& shard, const Shape& logical, int rank, int tp,
                int num_replicas = 1);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_SHARD_H_
