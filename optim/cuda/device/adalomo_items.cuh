// SPDX-License-Identifier: Apache-2.0

// The arguments of AdaLomo's GPU kernels for each parameter. Layouts are on the host and are sent
// in one copy. Private to optim/cuda.
//
//   AdaLomoItems items(context, args.chunks, AdaLomoSums::kSquares);
//   ForEachTile(context, items.items(), ...);               // kernels write the items' partials
#ifndef APOGEE_OPTIM_CUDA_DEVICE_ADALOMO_ITEMS_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_ADALOMO_ITEMS_CUH_

#include <memory>
#include <span>
#include <vector>

#include "apogee/optim/core/kernels.h"
#include "apogee/optim/cuda/device/row_tiles.cuh"

namespace apogee::optim::cuda {

struct AdaLomoItem : UpdateChunk {
  HeldMatrix held;
  void* exp_avg_sq;
  const double* factors;
  const void *weight_sum, *update_sum;
  int64_t numel;     // of the logical parameter
  bool vectors;      // with sums per row and column
  double* partials;  // squares [tiles], and with vectors [strips][rows], [slabs][columns]
  void* sums;        // with vectors those of rows and columns, then the sum of squares

  // The number of rows and of columns of all matrices of the batch together.
  __host__ __device__ int64_t rows() const { return held.matrix.batch * held.matrix.rows; }
  __host__ __device__ int64_t columns() const { return held.matrix.batch * held.matrix.cols; }
  __host__ __device__ double* row_partials() const { return partials + held.tiles(); }
  __host__ __device__ double* column_partials() const {
    return row_partials() + held.strips() * rows();
  }
  __host__ __device__ int64_t num_vectors() const { return vectors ? rows() + columns() : 0; }
  int64_t num_partials() const {
    return held.tiles() + (vectors ? held.strips() * rows() + held.slabs() * columns() : 0);
  }
};

// kSquares: one sum of squares per chunk. kAll: also sums per row and column, for factored chunks.
enum class AdaLomoSums { kNone, kSquares, kAll };

class AdaLomoItems {
 public:
  AdaLomoItems(const DeviceContext& context, std::span<const AdaLomoChunk> chunks,
               AdaLomoSums sums);

  std::span<const AdaLomoItem> items() const { return items_; }

 private:
  std::vector<AdaLomoItem> items_;
  std::unique_ptr<Workspace> segments_, partials_;
};

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_ADALOMO_ITEMS_CUH_
