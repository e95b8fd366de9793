// SPDX-License-Identifier: Apache-2.0

// Compares abi.h with this machine's nccl.h at compile time. Nothing here is called.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "apogee/comm/nccl/abi.h"

namespace apogee::comm::nccl {
namespace {

// Requires the same number of arguments, each of the same size and kind. Type names may differ.
template <typename Theirs, typename Ours>
struct Same;
template <typename R, typename... Args, typename OurR, typename... OurArgs>
struct Same<R(Args...), OurR (*)(OurArgs...)> {
  static constexpr bool kSameNumber = sizeof...(Args) == sizeof...(OurArgs);
  template <typename T, typename U>
  static constexpr bool kAlike =
      sizeof(T) == sizeof(U) && std::is_pointer_v<T> == std::is_pointer_v<U>&& std::is_class_v<T> ==
                                    std::is_class_v<U>;
  static constexpr bool Value() {
    if constexpr (!kSameNumber) {
      return false;
    } else {
      return kAlike<R, OurR> && (... && kAlike<Args, OurArgs>);
    }
  }
};

#define APOGEE_SAME_FUNCTION(theirs, ours) \
  static_assert(Same<decltype(theirs), decltype(Functions::ours)>::Value(), #theirs)
APOGEE_SAME_FUNCTION(ncclGetVersion, get_version);
APOGEE_SAME_FUNCTION(ncclGetUniqueId, get_unique_id);
APOGEE_SAME_FUNCTION(ncclCommInitRankConfig, comm_init_rank_config);
APOGEE_SAME_FUNCTION(ncclCommFinalize, comm_finalize);
APOGEE_SAME_FUNCTION(ncclCommDestroy, comm_destroy);
APOGEE_SAME_FUNCTION(ncclCommAbort, comm_abort);
APOGEE_SAME_FUNCTION(ncclCommGetAsyncError, comm_get_async_error);
APOGEE_SAME_FUNCTION(ncclGetErrorString, get_error_string);
APOGEE_SAME_FUNCTION(ncclGetLastError, get_last_error);
APOGEE_SAME_FUNCTION(ncclAllReduce, all_reduce);
APOGEE_SAME_FUNCTION(ncclReduceScatter, reduce_scatter);
APOGEE_SAME_FUNCTION(ncclAllGather, all_gather);
APOGEE_SAME_FUNCTION(ncclBroadcast, broadcast);
APOGEE_SAME_FUNCTION(ncclReduce, reduce);
APOGEE_SAME_FUNCTION(ncclSend, send);
APOGEE_SAME_FUNCTION(ncclRecv, recv);
APOGEE_SAME_FUNCTION(ncclGroupStart, group_start);
APOGEE_SAME_FUNCTION(ncclGroupEnd, group_end);
#undef APOGEE_SAME_FUNCTION

static_assert(static_cast<int>(ncclSuccess) == kSuccess);
static_assert(static_cast<int>(ncclUnhandledCudaError) == kUnhandledCudaError);
static_assert(static_cast<int>(ncclSystemError) == kSystemError);
static_assert(static_cast<int>(ncclInternalError) == kInternalError);
static_assert(static_cast<int>(ncclInvalidArgument) == kInvalidArgument);
static_assert(static_cast<int>(ncclInvalidUsage) == kInvalidUsage);
static_assert(static_cast<int>(ncclRemoteError) == kRemoteError);
static_assert(static_cast<int>(ncclInProgress) == kInProgress);

static_assert(static_cast<int>(ncclInt8) == kInt8);
static_assert(static_cast<int>(ncclUint8) == kUint8);
static_assert(static_cast<int>(ncclInt32) == kInt32);
static_assert(static_cast<int>(ncclInt64) == kInt64);
static_assert(static_cast<int>(ncclFloat16) == kFloat16);
static_assert(static_cast<int>(ncclFloat32) == kFloat32);
static_assert(static_cast<int>(ncclFloat64) == kFloat64);
static_assert(static_cast<int>(ncclBfloat16) == kBfloat16);
static_assert(static_cast<int>(ncclSum) == kRedSum);
static_assert(static_cast<int>(ncclMax) == kRedMax);

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));
static_assert(NCCL_CONFIG_UNDEF_INT == INT_MIN);
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(offsetof(ncclConfig_t, size) == offsetof(Config, size));
static_assert(offsetof(ncclConfig_t, magic) == offsetof(Config, magic));
static_assert(offsetof(ncclConfig_t, version) == offsetof(Config, version));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(Config, blocking));

}  // namespace
}  // namespace apogee::comm::nccl
