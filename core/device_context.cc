#include "apogee/core/device_context.h"

#include <utility>

#include "apogee/core/error.h"

namespace apogee {

DeviceContext::DeviceContext(Device device, std::unique_ptr<Allocator> allocator,
                             const KernelTable& kernels, int num_threads)
    : device_(device),
      allocator_(std::move(allocator)),
      kernels_(kernels),
      num_threads_(num_threads) {
  APOGEE_CHECK(num_threads >= 1, "a context needs at least one thread, got ", num_threads);
}

}  // namespace apogee
