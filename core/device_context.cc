// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/device_context.h"

#include <cstring>
#include <utility>

#include "apogee/core/error.h"

namespace apogee {

DeviceContext::DeviceContext(Device device, std::unique_ptr<Allocator> allocator,
                             const KernelTable& kernels, int num_threads, ContextPtr host, bool dry)
    : device_(device),
      allocator_(std::move(allocator)),
      kernels_(kernels),
      num_threads_(num_threads),
      host_(std::move(host)),
      dry_(dry) {
  APOGEE_CHECK(num_threads >= 1, "a context needs at least one thread, got ", num_threads);
  APOGEE_CHECK(is_host() == (host_ == nullptr), "a context on ", device.ToString(),
               is_host() ? " is its own host context" : " needs a host context");
}

void DeviceContext::CopyToHost(void* host, const void* device, int64_t bytes) const {
  if (bytes > 0) std::memcpy(host, device, static_cast<size_t>(bytes));
}

void DeviceContext::CopyFromHost(void* device, const void* host, int64_t bytes) const {
  if (bytes > 0) std::memcpy(device, host, static_cast<size_t>(bytes));
}

void DeviceContext::CopyWithin(void* to, const void* from, int64_t bytes) const {
  if (dry_ && bytes > kDryNumel * int64_t{sizeof(double)}) return;
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace apogee
