// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/compressed_all_reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace apogee::comm {
namespace {

// Scales are sent after the signs, in the errors' dtype. The same to all ranks: bytes [ranks, ...].
Tensor ScaleBytes(const std::vector<double>& scales, DType dtype, int64_t ranks,
                  const ContextPtr& context) {
  const auto bytes_of = [&]<typename T>() {
    const std::vector<T> rounded(scales.begin(), scales.end());
    const auto* from = reinterpret_cast<const uint8_t*>(rounded.data());
    std::vector<uint8_t> bytes;
    for (int64_t r = 0; r < ranks; ++r) {
      bytes.insert(bytes.end(), from, from + rounded.size() * sizeof(T));
    }
    return Tensor::FromVector(bytes, {ranks, static_cast<int64_t>(rounded.size() * sizeof(T))},
                              context);
  };
  return dtype == DType::kF64 ? bytes_of.operator()<double>() : bytes_of.operator()<float>();
}

// Reads the scales of each row from such bytes. Waits for the device.
std::vector<std::vector<double>> ReadScales(const Tensor& rows, DType dtype) {
  const std::vector<uint8_t> bytes = rows.ToVector<uint8_t>();
  std::vector<std::vector<double>> scales;
  const auto read = [&]<typename T>() {
    const auto row_bytes = static_cast<size_t>(rows.size(1));
    for (size_t at = 0; at < bytes.size(); at += row_bytes) {
      std::vector<T> row(row_bytes / sizeof(T));
      std::memcpy(row.data(), bytes.data() + at, row_bytes);
      scales.emplace_back(row.begin(), row.end());
    }
  };
  dtype == DType::kF64 ? read.operator()<double>() : read.operator()<float>();
  return scales;
}

uint8_t* Bytes(const Tensor& tensor) { return tensor.address<uint8_t>(); }

const uint8_t* LiveBits(const CompressedTensor& tensor, int64_t first_byte = 0) {
  return tensor.live.defined() ? Bytes(tensor.live) + first_byte : nullptr;
}

void* At(const Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(tensor.raw()) + element * DTypeSize(tensor.dtype());
}

}  // namespace

struct CompressedAllReduce::Part {
  const CompressedTensor* tensor;
  int64_t n, padded, chunk;  // elements
  int64_t num_live;          // elements from here on are padding that takes no part
  int64_t offset;            // where its signs begin in a message, in bytes
  size_t scale;              // index of its scale
  // Number of live elements in the chunk that begins at element `first`.
  int64_t LiveIn(int64_t first) const { return std::clamp<int64_t>(num_live - first, 0, chunk); }
};

struct CompressedAllReduce::Exchange {
  std::vector<CompressedTensor> tensors;
  std::vector<Part> parts;  // of `tensors`
  size_t num_scales;
  int64_t signs, message;  // bytes of a message's signs, and of the whole message
  Tensor received;
  std::vector<std::vector<double>> scales;  // by sender
};

CompressedAllReduce::CompressedAllReduce(GroupPtr group, const CompressionOptions& options)
    : group_(std::move(group)), options_(options) {}

int64_t CompressedAllReduce::PaddedNumel(int64_t n) const {
  const int64_t ranks = size();
  const int64_t unit = ranks * (options_.deepspeed ? std::lcm(ranks, int64_t{8}) : int64_t{8});
  return (n + unit - 1) / unit * unit;
}

Tensor CompressedAllReduce::PackLive(const Tensor& mask, double floor) const {
  APOGEE_CHECK(
      mask.dtype() == DType::kU8 || mask.dtype() == DType::kF32 || mask.dtype() == DType::kF64,
      "compressed_all_reduce: a mask must be u8, f32 or f64, got ", DTypeName(mask.dtype()));
  const Tensor bits = Tensor::Zeros({PaddedNumel(mask.numel()) / 8}, DType::kU8, mask.context(),
                                    MemoryCategory::kOptimizerState);
  SignKernelsFor(*mask.context())
      .pack_live(*mask.context(), {mask.dtype(), floor, mask.raw(), mask.numel(), Bytes(bits)});
  return bits;
}

void CompressedAllReduce::CheckTensor(const CompressedTensor& tensor) const {
  const auto check = [](const char* name, const Tensor& t, DType dtype, int64_t numel) {
    APOGEE_CHECK(t.defined() && t.is_contiguous() && t.dtype() == dtype && t.numel() == numel,
                 "compressed_all_reduce: ", name, " must be ", DTypeName(dtype), " [", numel,
                 "], contiguous, got ", t.defined() ? DTypeName(t.dtype()) : "nothing", " of ",
                 t.defined() ? t.numel() : 0, " elements");
  };
  APOGEE_CHECK(
      tensor.value.defined() && IsFloat(tensor.value.dtype()) && tensor.value.is_contiguous(),
      "compressed_all_reduce: a value must be a contiguous tensor of a floating dtype");
  const int64_t n = tensor.value.numel();
  const DType dtype = tensor.value.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  check("worker_error", tensor.worker_error, dtype, PaddedNumel(n));
  check("server_error", tensor.server_error, dtype, ChunkNumel(n));
  if (tensor.live.defined()) check("live", tensor.live, DType::kU8, PaddedNumel(n) / 8);
  APOGEE_CHECK(!options_.deepspeed || !tensor.live.defined(),
               "compressed_all_reduce: DeepSpeed's form counts every element; multiply the result "
               "with the mask instead");
}

std::vector<CompressedAllReduce::Part> CompressedAllReduce::Parts(
    std::span<const CompressedTensor> tensors) const {
  std::vector<Part> parts;
  int64_t offset = 0;
  for (const CompressedTensor& tensor : tensors) {
    CheckTensor(tensor);
    APOGEE_CHECK(tensor.worker_error.dtype() == tensors[0].worker_error.dtype(),
                 "compressed_all_reduce: one call takes f64 values or other values, not both");
    APOGEE_CHECK(tensor.scale_group >= 0, "compressed_all_reduce: a scale_group is ",
                 tensor.scale_group, ", must be at least 0");
    const int64_t n = tensor.value.numel();
    const size_t scale =
        options_.shared_scale ? static_cast<size_t>(tensor.scale_group) : parts.size();
    const int64_t padded = PaddedNumel(n);
    parts.push_back(
        {&tensor, n, padded, ChunkNumel(n), options_.deepspeed ? padded : n, offset, scale});
    offset += ChunkNumel(n) / 8;
  }
  return parts;
}

int64_t CompressedAllReduce::CountLive(const CompressedTensor& tensor, int64_t begin,
                                       int64_t end) const {
  if (options_.deepspeed) return end - begin;
  const uint8_t* live = LiveBits(tensor, begin / 8);
  if (live == nullptr) return std::max<int64_t>(0, std::min(end, tensor.value.numel()) - begin);
  const DeviceContext& context = *tensor.live.context();
  int64_t count = 0;
  SignKernelsFor(context).count_live(context, {live, (end - begin) / 8, &count});
  return count;
}

std::vector<double> CompressedAllReduce::Scales(std::span<const Part> parts, size_t num_scales,
                                                std::span<const double> squares,
                                                std::span<const int64_t> counts) {
  std::vector<double> sums(num_scales);
  std::vector<int64_t> elements(num_scales);
  for (size_t t = 0; t < parts.size(); ++t) {
    sums[parts[t].scale] += squares[t];
    elements[parts[t].scale] += counts[t];
  }
  for (size_t s = 0; s < num_scales; ++s) {
    sums[s] = elements[s] == 0 ? 0 : std::sqrt(sums[s] / static_cast<double>(elements[s]));
  }
  return sums;
}

std::optional<size_t> CompressedAllReduce::Run(std::span<const CompressedTensor> tensors) const {
  const Sent sent = Send(tensors);
  if (!sent.nonfinite) Finish(sent);
  return sent.nonfinite;
}

CompressedAllReduce::Sent CompressedAllReduce::Send(
    std::span<const CompressedTensor> tensors) const {
  if (group_ == nullptr || tensors.empty()) return {};
  const auto exchange = std::make_shared<Exchange>();
  exchange->tensors.assign(tensors.begin(), tensors.end());
  exchange->parts = Parts(exchange->tensors);
  const std::vector<Part>& parts = exchange->parts;
  const DeviceContext& context = *tensors[0].value.context();
  const SignKernels& kernels = SignKernelsFor(context);
  const DType dtype = tensors[0].worker_error.dtype();
  const size_t num_scales = std::ranges::max(parts, {}, &Part::scale).scale + 1;
  const int64_t signs = parts.back().offset + parts.back().chunk / 8;
  const int64_t message = signs + static_cast<int64_t>(num_scales) * DTypeSize(dtype);
  const auto bytes = [&](const Shape& shape) {
    return Tensor::Empty(shape, DType::kU8, tensors[0].value.context(), MemoryCategory::kWorkspace);
  };
  const int ranks = size();

  // This rank's messages: to rank j, chunk j of every tensor, and all scales.
  std::vector<double> squares(parts.size());
  std::vector<int64_t> counts(parts.size());
  const Tensor send = bytes({ranks, message}), received = bytes({ranks, message});
  for (size_t t = 0; t < parts.size(); ++t) {
    const Part& part = parts[t];
    const Tensor whole = bytes({part.padded / 8});
    kernels.pack(context, {part.tensor->value.dtype(), dtype, part.tensor->value.raw(), part.n,
                           part.tensor->worker_error.raw(), LiveBits(*part.tensor), part.num_live,
                           part.padded, Bytes(whole), &squares[t]});
    counts[t] = CountLive(*part.tensor, 0, part.padded);
    send.Slice(1, part.offset, part.chunk / 8).CopyFrom(whole.View({ranks, part.chunk / 8}));
  }
  const std::vector<double> own_scales = Scales(parts, num_scales, squares, counts);
  send.Slice(1, signs, message - signs)
      .CopyFrom(ScaleBytes(own_scales, dtype, ranks, send.context()));
  group_->AllToAll(received, send);

  // All ranks see the same scales here, before any rank has changed anything.
  exchange->scales = ReadScales(received.Slice(1, signs, message - signs), dtype);
  exchange->num_scales = num_scales;
  exchange->signs = signs;
  exchange->message = message;
  exchange->received = received;
  for (size_t t = 0; t < parts.size(); ++t) {
    for (const std::vector<double>& sent : exchange->scales) {
      if (!std::isfinite(sent[parts[t].scale])) return {t, exchange};
    }
  }
  return {std::nullopt, exchange};
}

void CompressedAllReduce::Finish(const Sent& sent_before) const {
  if (sent_before.exchange == nullptr) return;
  APOGEE_CHECK(!sent_before.nonfinite,
               "compressed_all_reduce: Finish of a Send that found values that are not finite");
  const Exchange& exchange = *sent_before.exchange;
  const std::vector<Part>& parts = exchange.parts;
  const std::vector<std::vector<double>>& scales = exchange.scales;
  const Tensor& received = exchange.received;
  const size_t num_scales = exchange.num_scales;
  const int64_t signs = exchange.signs, message = exchange.message;
  const CompressedTensor& first_tensor = exchange.tensors[0];
  const DeviceContext& context = *first_tensor.value.context();
  const SignKernels& kernels = SignKernelsFor(context);
  const DType dtype = first_tensor.worker_error.dtype();
  const int ranks = size();
  const auto bytes = [&](int64_t rows) {
    return Tensor::Empty({rows, message}, DType::kU8, first_tensor.value.context(),
                         MemoryCategory::kWorkspace);
  };

  // This rank as the server of its chunk:
  std::vector<double> squares(parts.size());
  std::vector<int64_t> counts(parts.size());
  const Tensor answer = bytes(1), answers = bytes(ranks);
  for (size_t t = 0; t < parts.size(); ++t) {
    const Part& part = parts[t];
    std::vector<const uint8_t*> sent;
    std::vector<double> sent_scales;
    for (int j = 0; j < ranks; ++j) {
      sent.push_back(Bytes(received) + j * message + part.offset);
      sent_scales.push_back(scales[static_cast<size_t>(j)][part.scale]);
    }
    const int64_t first = group_->rank() * part.chunk;
    kernels.collect(context, {dtype, sent, sent_scales, part.tensor->server_error.raw(),
                              LiveBits(*part.tensor, first / 8), part.LiveIn(first), part.chunk,
                              Bytes(answer) + part.offset, &squares[t]});
    counts[t] = CountLive(*part.tensor, first, first + part.chunk);
  }
  std::vector<double> answer_scales = Scales(parts, num_scales, squares, counts);
  const Tensor scale_bytes = ScaleBytes(answer_scales, dtype, 1, answer.context());
  answer.Slice(1, signs, message - signs).CopyFrom(scale_bytes);
  if (dtype != DType::kF64) {  // rounded as the other ranks receive them
    for (double& scale : answer_scales) scale = static_cast<float>(scale);
  }
  for (const Part& part : parts) {
    const int64_t first = group_->rank() * part.chunk;
    kernels.keep_error(context,
                       {dtype, answer_scales[part.scale], part.tensor->server_error.raw(),
                        LiveBits(*part.tensor, first / 8), part.LiveIn(first), part.chunk});
  }
  group_->AllGather(answers, answer);

  const std::vector<std::vector<double>> final_scales =
      ReadScales(answers.Slice(1, signs, message - signs), dtype);
  const std::vector<double>& sent_scales = scales[static_cast<size_t>(group_->rank())];
  for (int j = 0; j < ranks; ++j) {
    const uint8_t* from = Bytes(answers) + j * message;
    for (const Part& part : parts) {
      const int64_t first = j * part.chunk;
      const CompressedTensor& tensor = *part.tensor;
      kernels.unpack(
          context,
          {tensor.value.dtype(), dtype, At(tensor.value, std::min(first, part.n)),
           std::clamp<int64_t>(part.n - first, 0, part.chunk), At(tensor.worker_error, first),
           LiveBits(tensor, first / 8), part.LiveIn(first), part.chunk, from + part.offset,
           sent_scales[part.scale], final_scales[static_cast<size_t>(j)][part.scale]});
    }
  }
}

void CompressedAllReduce::Clear(const Tensor& value, const Tensor& live) {
  APOGEE_CHECK(value.is_contiguous() && live.numel() * 8 >= value.numel(),
               "compressed_all_reduce: live of ", live.numel(), " bytes for ", value.numel(),
               " elements, which must be contiguous");
  const DeviceContext& context = *value.context();
  SignKernelsFor(context).clear(context, {value.dtype(), value.raw(), value.numel(), Bytes(live)});
}

}  // namespace apogee::comm
