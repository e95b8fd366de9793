// SPDX-License-Identifier: Apache-2.0

// CompressedAllReduce: the mean of tensors over a group, sent as one bit per element and direction.
// The errors of rounding to signs are fed back into the next call (Tang et al., 1-bit Adam, ICML
// 2021, arXiv:2102.02888).
//
//   CompressedAllReduce reduce(group);
//   CompressedTensor m{
//       .value = momentum,                                                  // in and out
//       .worker_error = Tensor::Zeros({reduce.PaddedNumel(n)}, DType::kF32, context),
//       .server_error = Tensor::Zeros({reduce.ChunkNumel(n)}, DType::kF32, context)};
//   if (auto bad = reduce.Run({&m, 1})) ...   // index of a tensor that is not finite on some rank
//   ... keep m's errors for the next call ...
//
// Per tensor, on each rank:
//   c = value + worker_error
//   send sign(c) and s = sqrt(mean(c^2))
//   worker_error = c - s sign(c)
// Rank j is the server of chunk j of the tensor:
//   a = mean over ranks of s sign(c), + server_error
//   send sign(a) and t = sqrt(mean(a^2)) to all ranks
//   server_error = a - t sign(a)
// Then on each rank, for every chunk:
//   value = t sign(a)
// If errors start at 0, the sum of all results, plus the mean of the worker errors, plus the server
// errors, equals the sum of all exact means. So nothing is lost; some of it comes in later calls.
//
// Tensors: f32, bf16, f16 or f64, contiguous, of any shape. The n elements are padded to a multiple
// of 8 times the number of ranks. Errors are f32 (f64 for f64 values) and differ per rank. Elements
// that are not live (`live`: bits from PackLive) take no part: their bits are ignored, and they
// become 0 and keep no error. The same holds for padding, so only live elements of the tensor count
// in a scale. sign(0) is +1.
//
// All tensors of a call share one all-to-all and one all-gather. A rank sends
//   2 (size - 1) (sum of ChunkNumel / 8 + 4 num_scales)
// bytes, about (size - 1) / size * n / 4; with f64 errors a scale takes 8 bytes instead of 4. There
// is one scale per tensor, or with shared_scale one per group of tensors.
//
// Send and Finish are the two halves of Run. Until Finish nothing has changed, so the caller may
// still stop, for example because another Send found a value that is not finite:
//
//   const CompressedAllReduce::Sent sent = reduce.Send({&m, 1});
//   if (!sent.nonfinite) reduce.Finish(sent);
//
// Collective and blocking: every rank calls with the same tensors in the same order. With a null
// group, values stay as they are. Misuse throws Error.
#ifndef APOGEE_COMM_COMPRESSED_ALL_REDUCE_H_
#define APOGEE_COMM_COMPRESSED_ALL_REDUCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/comm/sign_kernels.h"

namespace apogee::comm {

struct CompressionOptions {
  // One scale for all tensors of a call that have the same scale_group, as if they were one tensor.
  bool shared_scale = false;
  // Compute as DeepSpeed does: a scale divides by the padded number of elements, padding takes part
  // and has errors, and chunks are aligned to the least common multiple of 8 and the group's size.
  // `live` must be undefined then.
  bool deepspeed = false;
};

struct CompressedTensor {
  Tensor value;         // in: this rank's values; out: the result, the same on all ranks
  Tensor worker_error;  // [PaddedNumel], in and out
  Tensor server_error;  // [ChunkNumel], in and out: the errors of this rank's chunk
  Tensor live = {};     // u8 [PaddedNumel / 8]; undefined: all elements are live
  // With shared_scale: tensors of the same number share a scale. Numbers start at 0.
  int scale_group = 0;
};

class CompressedAllReduce {
 public:
  explicit CompressedAllReduce(GroupPtr group, const CompressionOptions& options = {});

  // Elements of the error tensors for a tensor of n elements.
  int64_t PaddedNumel(int64_t n) const;
  int64_t ChunkNumel(int64_t n) const { return PaddedNumel(n) / size(); }
  // The `live` bits of a mask (u8, f32 or f64): 1 where it is finite and above `floor`.
  Tensor PackLive(const Tensor& mask, double floor = 0) const;

  // Returns the index of the first tensor that has a non-finite value on some rank, the same on all
  // ranks; then nothing has changed on any rank.
  std::optional<size_t> Run(std::span<const CompressedTensor> tensors) const;

  struct Exchange;  // the messages received by Send
  struct Sent {
    std::optional<size_t> nonfinite;           // as Run returns it
    std::shared_ptr<const Exchange> exchange;  // null: no group or no tensors
  };
  Sent Send(std::span<const CompressedTensor> tensors) const;
  // Only after a Send that found all values finite. Either all ranks call it or none.
  void Finish(const Sent& sent) const;

  // Sets value to 0 where it is not live.
  static void Clear(const Tensor& value, const Tensor& live);

  int size() const { return GroupSize(group_); }

 private:
  struct Part;  // one tensor's place within the messages
  std::vector<Part> Parts(std::span<const CompressedTensor> tensors) const;
  void CheckTensor(const CompressedTensor& tensor) const;
  // Number of elements in [begin, end) that take part.
  int64_t CountLive(const CompressedTensor& tensor, int64_t begin, int64_t end) const;
  static std::vector<double> Scales(std::span<const Part> parts, size_t num_scales,
                                    std::span<const double> squares,
                                    std::span<const int64_t> counts);

  GroupPtr group_;
  CompressionOptions options_;
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_COMPRESSED_ALL_REDUCE_H_
