// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/sign_kernels.h"

#include <bit>
#include <limits>
#include <vector>

#include "apogee/comm/cpu/sign_lanes.h"
#include "apogee/comm/device_backend.h"
#include "apogee/core/device_context.h"
#include "apogee/core/parallel.h"

namespace apogee::comm::cpu {
namespace {

// With fewer bytes of signs, a loop is not split over threads.
constexpr int64_t kGrain = 4096;

// The live bits of elements 8 b to 8 b + 7.
[[gnu::always_inline]] inline uint8_t LiveAt(const uint8_t* live, int64_t num_live, int64_t b) {
  const uint8_t bits = live == nullptr ? uint8_t{255} : live[b];
  const int64_t rest = num_live - 8 * b;
  if (rest >= 8) return bits;
  return rest <= 0 ? uint8_t{0} : static_cast<uint8_t>(bits & ((1u << rest) - 1));
}

double Total(const DoubleLanes& lanes) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// value + error of the eight elements of byte b.
template <typename T, typename C>
[[gnu::always_inline]] inline Lanes<C> Compensated(const T* value, int64_t num_values,
                                                   const C* error, uint8_t live, int64_t b) {
  const Lanes<C> e = LoadLanes<C>(error + 8 * b, 8);
  const int64_t count = num_values - 8 * b;
  const Lanes<C> x = count <= 0 ? e : LoadLanes<C>(value + 8 * b, count) + e;
  return OnlyLive<C>(x, live);
}

template <typename T, typename C>
void PackAs(const DeviceContext& context, const PackArgs& args) {
  const T* value = static_cast<const T*>(args.value);
  const C* error = static_cast<const C*>(args.error);
  *args.squares = ParallelSum(context, args.numel / 8, [&](int64_t from, int64_t to) {
    DoubleLanes squares{};
    for (int64_t b = from; b < to; ++b) {
      const Lanes<C> x =
          Compensated(value, args.num_values, error, LiveAt(args.live, args.num_live, b), b);
      args.bits[b] = SignBits<C>(x);
      squares += Squares<C>(x);
    }
    return Total(squares);
  });
}

template <typename C>
void CollectAs(const DeviceContext& context, const CollectSignsArgs& args) {
  C* error = static_cast<C*>(args.error);
  // By sender: each of its signs adds +share or -share to the mean.
  std::vector<C> shares;
  for (const double scale : args.scales) {
    shares.push_back(static_cast<C>(scale / static_cast<double>(args.sent.size())));
  }
  *args.squares = ParallelSum(context, args.numel / 8, [&](int64_t from, int64_t to) {
    DoubleLanes squares{};
    for (int64_t b = from; b < to; ++b) {
      Lanes<C> sum{};
      for (size_t j = 0; j < args.sent.size(); ++j) {
        sum += SignedLanes<C>(args.sent[j][b], shares[j]);
      }
      Lanes<C> x = sum + LoadLanes<C>(error + 8 * b, 8);
      x = OnlyLive<C>(x, LiveAt(args.live, args.num_live, b));
      StoreLanes<C>(error + 8 * b, x, 8);
      args.bits[b] = SignBits<C>(x);
      squares += Squares<C>(x);
    }
    return Total(squares);
  });
}

template <typename C>
void KeepErrorAs(const DeviceContext& context, const KeepErrorArgs& args) {
  C* error = static_cast<C*>(args.error);
  const C scale = static_cast<C>(args.scale);
  ParallelFor(context, args.numel / 8, kGrain, [&](int64_t from, int64_t to) {
    for (int64_t b = from; b < to; ++b) {
      const Lanes<C> x = LoadLanes<C>(error + 8 * b, 8);
      const Lanes<C> kept = x - SignedLanes<C>(x, scale);
      StoreLanes<C>(error + 8 * b, OnlyLive<C>(kept, LiveAt(args.live, args.num_live, b)), 8);
    }
  });
}

template <typename T, typename C>
void UnpackAs(const DeviceContext& context, const UnpackArgs& args) {
  T* value = static_cast<T*>(args.value);
  C* error = static_cast<C*>(args.error);
  const C sent_scale = static_cast<C>(args.sent_scale), scale = static_cast<C>(args.scale);
  ParallelFor(context, args.numel / 8, kGrain, [&](int64_t from, int64_t to) {
    for (int64_t b = from; b < to; ++b) {
      const uint8_t live = LiveAt(args.live, args.num_live, b);
      const Lanes<C> x = Compensated(value, args.num_values, error, live, b);
      const Lanes<C> kept = x - SignedLanes<C>(x, sent_scale);
      StoreLanes<C>(error + 8 * b, OnlyLive<C>(kept, live), 8);
      const int64_t count = args.num_values - 8 * b;
      if (count <= 0) continue;
      StoreLanes<C>(value + 8 * b, OnlyLive<C>(SignedLanes<C>(args.bits[b], scale), live), count);
    }
  });
}

template <typename T>
void PackLiveAs(const PackLiveArgs& args) {
  const T* values = static_cast<const T*>(args.values);
  for (int64_t i = 0; i < args.num_values; ++i) {
    const auto x = static_cast<double>(values[i]);
    const bool live = x > args.floor && x < std::numeric_limits<double>::infinity();
    args.bits[i / 8] = static_cast<uint8_t>(args.bits[i / 8] | (unsigned{live} << (i % 8)));
  }
}

void pack(const DeviceContext& context, const PackArgs& args) {
  DispatchFloat(args.value_dtype, "compressed_all_reduce", [&]<typename T>() {
    args.error_dtype == DType::kF64 ? PackAs<T, double>(context, args)
                                    : PackAs<T, float>(context, args);
  });
}
void collect(const DeviceContext& context, const CollectSignsArgs& args) {
  args.error_dtype == DType::kF64 ? CollectAs<double>(context, args)
                                  : CollectAs<float>(context, args);
}
void keep_error(const DeviceContext& context, const KeepErrorArgs& args) {
  args.error_dtype == DType::kF64 ? KeepErrorAs<double>(context, args)
                                  : KeepErrorAs<float>(context, args);
}
void unpack(const DeviceContext& context, const UnpackArgs& args) {
  DispatchFloat(args.value_dtype, "compressed_all_reduce", [&]<typename T>() {
    args.error_dtype == DType::kF64 ? UnpackAs<T, double>(context, args)
                                    : UnpackAs<T, float>(context, args);
  });
}
void pack_live(const DeviceContext&, const PackLiveArgs& args) {
  if (args.value_dtype == DType::kU8) return PackLiveAs<uint8_t>(args);
  args.value_dtype == DType::kF64 ? PackLiveAs<double>(args) : PackLiveAs<float>(args);
}

void count_live(const DeviceContext&, const CountLiveArgs& args) {
  *args.count = 0;
  for (int64_t b = 0; b < args.num_bytes; ++b) *args.count += std::popcount(args.live[b]);
}

void clear(const DeviceContext&, const ClearArgs& args) {
  DispatchFloat(args.value_dtype, "compressed_all_reduce", [&]<typename T>() {
    T* values = static_cast<T*>(args.values);
    for (int64_t i = 0; i < args.num_values; ++i) {
      if ((args.live[i / 8] >> (i % 8) & 1) == 0) values[i] = T{};
    }
  });
}

constexpr SignKernels MakeTable() {
  SignKernels table;
#define APOGEE_FILL_SLOT(name, Args) table.name = &cpu::name;
  APOGEE_FOR_EACH_SIGN_KERNEL(APOGEE_FILL_SLOT)
#undef APOGEE_FILL_SLOT
  return table;
}

constexpr SignKernels kTable = MakeTable();

}  // namespace

const SignKernels& SignKernelTable() { return kTable; }

}  // namespace apogee::comm::cpu
