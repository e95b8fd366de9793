// SPDX-License-Identifier: Apache-2.0

// The kernels of element-wise updates: loops over the elements of the optimizers.
#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/chunk_loop.h"

namespace apogee::optim::cpu {
namespace {

struct NumberedChunk : UpdateChunk {
  size_t number;
};

}  // namespace

template <typename C>
void ForEachBlock(const DeviceContext& context, std::span<const UpdateChunk> chunks,
                  const BlockFn<C>& fn) {
  std::vector<NumberedChunk> numbered;
  for (const UpdateChunk& chunk : chunks) numbered.push_back({chunk, numbered.size()});
  ForEachUpdate<C>(context, std::span<const NumberedChunk>(numbered),
                   [&](const NumberedChunk& chunk, int64_t begin, int64_t n, C* w, const C* grad) {
                     fn(chunk.number, begin, n, w, grad);
                   });
}
template void ForEachBlock(const DeviceContext&, std::span<const UpdateChunk>,
                           const BlockFn<float>&);
template void ForEachBlock(const DeviceContext&, std::span<const UpdateChunk>,
                           const BlockFn<double>&);

#define APOGEE_DEFINE_KERNEL(name, Args) \
  void name(const DeviceContext& context, const Args& args) { RunElements(context, args); }
APOGEE_FOR_EACH_ELEMENT_KERNEL(APOGEE_DEFINE_KERNEL)
#undef APOGEE_DEFINE_KERNEL

}  // namespace apogee::optim::cpu
