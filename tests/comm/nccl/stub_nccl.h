// SPDX-License-Identifier: Apache-2.0

// The interface between tests and the stub NCCL (stub_nccl.cc).
#ifndef APOGEE_TESTS_COMM_NCCL_STUB_NCCL_H_
#define APOGEE_TESTS_COMM_NCCL_STUB_NCCL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "apogee/core/dtype.h"

namespace apogee::testing {

// A device's stream, as far as the stub goes: work queued on it, and work it has come past.
struct StubStream {
  std::atomic<int64_t> queued{0}, completed{0};
};

// An event that is recorded by the first call and queried by each.
inline std::function<bool()> Event(StubStream& stream) {
  return [&stream, target = std::make_shared<int64_t>(-1)] {
    if (*target < 0) *target = stream.queued;
    return stream.completed >= *target;
  };
}

// Faults of the calls that follow, separated by commas ("all_reduce_hangs,abort_hangs"), for all
// ranks or that one. Exported as stub_nccl_set_faults.
using SetFaults = void (*)(const char* faults, int rank);
// Communicators that were neither destroyed nor aborted. Exported as stub_nccl_num_alive.
using NumAlive = int (*)();

inline double LoadElement(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kBF16:
      return static_cast<float>(static_cast<const BFloat16*>(data)[i]);
    case DType::kF16:
      return static_cast<float>(static_cast<const Float16*>(data)[i]);
    case DType::kF64:
      return static_cast<const double*>(data)[i];
    case DType::kI64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    case DType::kI32:
      return static_cast<const int32_t*>(data)[i];
    case DType::kU8:
      return static_cast<const uint8_t*>(data)[i];
    case DType::kI8:
      return static_cast<const int8_t*>(data)[i];
  }
  return 0;
}

inline void StoreElement(DType dtype, void* data, int64_t i, double value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case DType::kBF16:
      static_cast<BFloat16*>(data)[i] = BFloat16(static_cast<float>(value));
      break;
    case DType::kF16:
      static_cast<Float16*>(data)[i] = Float16(static_cast<float>(value));
      break;
    case DType::kF64:
      static_cast<double*>(data)[i] = value;
      break;
    case DType::kI64:
      static_cast<int64_t*>(data)[i] = static_cast<int64_t>(value);
      break;
    case DType::kI32:
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
      break;
    case DType::kU8:
      static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(value);
      break;
    case DType::kI8:
      static_cast<int8_t*>(data)[i] = static_cast<int8_t>(value);
      break;
  }
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_COMM_NCCL_STUB_NCCL_H_
