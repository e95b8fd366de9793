// SPDX-License-Identifier: Apache-2.0

// The functions and types of NCCL that comm uses, declared here so that a build needs no NCCL.
//
//   Result (*all_reduce)(const void*, void*, size_t, int, int, Comm, Stream);
//
// NCCL's binary interface is stable within version 2. If CMake finds nccl.h, abi_check.cc compares
// each declaration with it. Private to comm.
#ifndef APOGEE_COMM_NCCL_ABI_H_
#define APOGEE_COMM_NCCL_ABI_H_

#include <climits>
#include <cstddef>

namespace apogee::comm::nccl {

using Comm = struct OpaqueComm*;
using Stream = void*;  // cudaStream_t

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum RedOp : int { kRedSum = 0, kRedMax = 2 };

struct UniqueId {
  char internal[128];
};

// As of NCCL 2.14. A later NCCL learns from `version` which fields exist and uses its defaults for
// the others.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = INT_MIN;
};

struct Functions {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  // Later calls also write to `comm`, until the communicator is ready.
  Result (*comm_init_rank_config)(Comm* comm, int size, UniqueId id, int rank, Config* config);
  Result (*comm_finalize)(Comm comm);
  Result (*comm_destroy)(Comm comm);
  Result (*comm_abort)(Comm comm);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Comm comm);
  Result (*all_reduce)(const void* input, void* output, size_t count, DataType dtype, RedOp op,
                       Comm comm, Stream stream);
  Result (*reduce_scatter)(const void* input, void* output, size_t output_count, DataType dtype,
                           RedOp op, Comm comm, Stream stream);
  Result (*all_gather)(const void* input, void* output, size_t input_count, DataType dtype,
                       Comm comm, Stream stream);
  Result (*broadcast)(const void* input, void* output, size_t count, DataType dtype, int root,
                      Comm comm, Stream stream);
  Result (*reduce)(const void* input, void* output, size_t count, DataType dtype, RedOp op,
                   int root, Comm comm, Stream stream);
  Result (*send)(const void* input, size_t count, DataType dtype, int peer, Comm comm,
                 Stream stream);
  Result (*recv)(void* output, size_t count, DataType dtype, int peer, Comm comm, Stream stream);
  Result (*group_start)();
  Result (*group_end)();
};

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_ABI_H_
