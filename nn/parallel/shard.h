// SPDX-License-Identifier: Apache-2.0

// TensorShard: how a logical parameter is cut over the ranks of a tensor-parallel group.
//
//   const TensorShard column{.dim = 1};                     // Conv1D weight [in, out] by columns
//   const TensorShard qkv{.dim = 1, .sections = 3};         // fused q, k, v: each third by tp
//   const TensorShard vocab{.dim = 0, .pad = true};         // rows that tp need not divide
//   Tensor local = CutLocal(qkv, whole, rank, tp);
//   comm::Layout layout = LayoutOf(qkv, whole.shape(), rank, tp);   // says where its elements are
//
// The dim consists of `sections` equal sections; each is cut into tp equal parts, and a rank holds
// its part of every section, one after the other. Local: nothing communicates.
//
// With `pad`, parts are rounded up and the local tensors of the last ranks end in rows of zeros,
// which belong to no logical element. Only the first dim and one section: a Layout has padding at
// the end alone. Everything here throws Error, with the numbers, for a shard that does not fit the
// shape.
#ifndef APOGEE_NN_PARALLEL_SHARD_H_
#define APOGEE_NN_PARALLEL_SHARD_H_

#include <span>

#include "apogee/comm/layout.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

struct TensorShard {
  int dim = 0;  // negative: from the end
  int sections = 1;
  bool pad = false;
  friend bool operator==(const TensorShard&, const TensorShard&) = default;
};

// The shape of every rank's local tensor, padding included.
Shape LocalShape(const TensorShard& shard, const Shape& logical, int tp);

// Rank `rank`'s local tensor: a contiguous copy of whole's elements.
Tensor CutLocal(const TensorShard& shard, const Tensor& whole, int rank, int tp);

// The whole tensor of shape `logical` from all ranks' local tensors, in rank order.
Tensor Assemble(const TensorShard& shard, const Shape& logical, std::span<const Tensor> locals);

// Segments: the local tensor's elements in its order, padding excluded. num_replicas: how many
// ranks hold each of them (the other axes of the mesh).
comm::Layout LayoutOf(const TensorShard& shard, const Shape& logical, int rank, int tp,
                      int num_replicas = 1);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_SHARD_H_
