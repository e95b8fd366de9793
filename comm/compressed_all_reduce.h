// SPDX-License-Identifier: Apache-2.0

// CompressedAllReduce: the mean of tensors over a group in one bit per element and direction, with
// the errors of rounding to signs fed back into the next call (Tang et al., 1-bit Adam, ICML 2021,
// arXiv:2102.02888).
//
//   CompressedAllReduce reduce(group);
//   CompressedTensor m{.value = momentum,                                  // in and out
//                      .worker_error = Zeros({reduce.PaddedNumel(n)}),     // kept between calls
//                      .server_error = Zeros({reduce.ChunkNumel(n)})};
//   if (auto bad = reduce.Run({&m, 1})) ...   // the first tensor that is not finite on some rank
//
// Each rank adds its worker error to its values, sends the signs and one scale, the root of the
// mean square, and keeps what that lost as its new error. Rank j averages chunk j of what all ranks
// sent, adds its server error, and sends signs and scale of that to everybody. So, when errors
// start at 0, the sum of all results, plus the mean of the worker errors, plus the server errors,
// is the sum of all means: nothing is lost, some of it is late.
//
// Tensors: f32, bf16, f16 or f64, contiguous, of any shape; n elements, of which the last lie
// before padding up to a multiple of 8 ranks. Errors are f32 (f64 for f64 values), per rank.
// Elements that are not live (`live`: bits from PackLive) send nothing that counts, get 0 and keep
// no error. Padding likewise, so that the scale is that of the true elements. sign(0) is +1.
//
// All tensors of a call share one all_to_all and one all_gather: a rank sends
// 2 (size - 1) (sum of ChunkNumel / 8 + 4 scales) bytes, about (size - 1) / size * n / 4, in f64
// runs 8 per scale. There is a scale per tensor, or with shared_scale per group of them.
//
// Send and Finish are the halves of Run: until Finish nothing has changed, so that a caller may
// give up for the sake of what another Send, or ranks outside of the group, have found:
//
//   const CompressedAllReduce::Sent sent = reduce.Send({&m, 1});
//   if (!sent.nonfinite) reduce.Finish(sent);
//
// Collective, blocking: every rank calls with the same tensors in the same order. A null group
// leaves the values alone. Misuse throws Error.
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
  // One scale for all tensors of a call with the same scale_group, as if they were one.
  bool shared_scale = false;
  // As DeepSpeed: scales divide by the padded number of elements, padding has errors and takes
  // part, chunks are aligned to the least common multiple of 8 and the group's size. No `live`
  // then.
  bool deepspeed = false;
};

struct CompressedTensor {
  Tensor value;         // in: this rank's; out: the same on all ranks
  Tensor worker_error;  // [PaddedNumel]
  Tensor server_error;  // [ChunkNumel], of this rank's chunk
  Tensor live = {};     // u8 [PaddedNumel / 8]; undefined: all elements are
  // With shared_scale: tensors of one number share a scale. Numbers count from 0.
  int scale_group = 0;
};

class CompressedAllReduce {
 public:
  explicit CompressedAllReduce(GroupPtr group, const CompressionOptions& options = {});

  // Elements of the errors of a tensor of n.
  int64_t PaddedNumel(int64_t n) const;
  int64_t ChunkNumel(int64_t n) const { return PaddedNumel(n) / size(); }
  // Which elements of `mask` (u8, f32 or f64) are finite and above `floor`.
  Tensor PackLive(const Tensor& mask, double floor = 0) const;

  // The index of the first tensor with a value that is not finite on some rank: then nothing has
  // changed, on any rank.
  std::optional<size_t> Run(std::span<const CompressedTensor> tensors) const;

  struct Exchange;  // what ranks have told each other
  struct Sent {
    std::optional<size_t> nonfinite;           // as Run returns it
    std::shared_ptr<const Exchange> exchange;  // null: there is nothing to do
  };
  Sent Send(std::span<const CompressedTensor> tensors) const;
  // Every rank or none, of a Send that found all values finite.
  void Finish(const Sent& sent) const;

  // value = 0 where not live.
  static void Clear(const Tensor& value, const Tensor& live);

  int size() const { return GroupSize(group_); }

 private:
  struct Part;  // a tensor within the messages
  std::vector<Part> Parts(std::span<const CompressedTensor> tensors) const;
  void CheckTensor(const CompressedTensor& tensor) const;
  // Elements that count in [begin, end).
  int64_t CountLive(const CompressedTensor& tensor, int64_t begin, int64_t end) const;
  static std::vector<double> Scales(std::span<const Part> parts, size_t num_scales,
                                    std::span<const double> squares,
                                    std::span<const int64_t> counts);

  GroupPtr group_;
  CompressionOptions options_;
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_COMPRESSED_ALL_REDUCE_H_
