// SPDX-License-Identifier: Apache-2.0

// One kernel launch for many tensors of any size. Private to optim/cuda.
//
// The arguments for each tensor, an item (for example a chunk of optim/core/kernels.h), are passed
// in the kernel's parameters, so there is no copy to the GPU and nothing to keep until the kernel
// has run. Items are cut into tiles; a block of threads works on one tile and finds its item from
// the number of the tile. There is a second launch only if the items do not fit into the
// parameters.
//
//   struct Body {
//     __device__ void operator()(const Item& item, int64_t tile) const;   // by a whole block
//   };
//   ForEachTile(context, items, [](const Item& item) { return CeilDiv(item.n, kTile); }, Body{});
#ifndef APOGEE_OPTIM_CUDA_DEVICE_TILE_LIST_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_TILE_LIST_CUH_

#include <algorithm>
#include <span>
#include <type_traits>

#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::optim::cuda {

using apogee::cuda::CeilDiv;
using apogee::cuda::Launch;

inline constexpr int kTileThreads = 256;

template <typename T, int kMost>
struct TileList {
  using Item = T;
  static constexpr int kCapacity = kMost;

  int count;
  int64_t items_before;      // number of items in earlier lists
  int64_t first[kMost + 1];  // first tile of each item; first[count]: number of tiles
  T items[kMost];

  int64_t num_tiles() const { return first[count]; }
  // The item that the tile belongs to; never an item without tiles.
  __device__ int Find(int64_t tile) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first[middle] <= tile) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

template <int kCapacity, typename Item, typename Tiles, typename Fn>
void ForEachListOf(std::span<const Item> items, const Tiles& tiles, const Fn& fn) {
  TileList<Item, kCapacity> list;
  for (size_t begin = 0; begin < items.size(); begin += kCapacity) {
    const size_t count = std::min(items.size() - begin, size_t{kCapacity});
    list.count = static_cast<int>(count);
    list.items_before = static_cast<int64_t>(begin);
    list.first[0] = 0;
    for (size_t i = 0; i < count; ++i) {
      list.items[i] = items[begin + i];
      list.first[i + 1] = list.first[i] + tiles(items[begin + i]);
    }
    fn(static_cast<const TileList<Item, kCapacity>&>(list));
  }
}

// Calls fn(list) with lists that have all items in order. Kernel parameters are at most 32764 bytes
// and are all sent with a launch, so a few items get a short list.
template <typename Item, typename Tiles, typename Fn>
void ForEachTileList(std::span<const Item> items, const Tiles& tiles, const Fn& fn) {
  static_assert(std::is_trivially_copyable_v<Item>);
  constexpr int kFew = 8;
  constexpr int kMany = static_cast<int>(32000 / (sizeof(Item) + sizeof(int64_t)));
  if (items.size() <= kFew) {
    ForEachListOf<kFew>(items, tiles, fn);
  } else {
    ForEachListOf<kMany>(items, tiles, fn);
  }
}

template <typename List, typename Body>
__global__ void __launch_bounds__(kTileThreads)
    TileKernel(const List __grid_constant__ list, const Body body) {
  const int64_t tile = blockIdx.x;
  const int at = list.Find(tile);
  body(list.items[at], tile - list.first[at]);
}

// Runs body(item, tile) for each of the tiles(item) tiles of every item, in any order, with a block
// of kTileThreads threads per tile.
template <typename Item, typename Tiles, typename Body>
void ForEachTile(const DeviceContext& context, std::span<const Item> items, const Tiles& tiles,
                 const Body& body) {
  ForEachTileList(items, tiles, [&](const auto& list) {
    if (list.num_tiles() == 0) return;
    using List = std::remove_cvref_t<decltype(list)>;
    Launch(
        context,
        {.blocks = {static_cast<unsigned>(list.num_tiles())}, .threads = {unsigned{kTileThreads}}},
        &TileKernel<List, Body>, list, body);
  });
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_TILE_LIST_CUH_
