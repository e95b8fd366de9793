// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/quantized/quantized_weight.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "apogee/tensor/ops/block_codes.h"

namespace apogee::nn {
namespace {

using autograd::LazyValue;
using autograd::Parameter;
using autograd::ParameterPtr;

// Adds [begin, end) to ascending segments; what they have already is not added.
void Append(std::vector<Segment>& segments, int64_t begin, int64_t end) {
  if (!segments.empty()) {
    Segment& last = segments.back();
    const int64_t last_end = last.begin + last.length;
    if (begin <= last_end) {
      last.length = std::max(last_end, end) - last.begin;
      return;
    }
  }
  segments.push_back({begin, end - begin});
}

// Sections of the bytes, each with what some elements need of it.
std::vector<Segment> SegmentsOf(const BlockCodes& codes, const Layout& part) {
  std::vector<Segment> segments;
  Append(segments, 0, codes.code_begin());
  const std::vector<PlacedSegment> sorted = SortedSegments(part);
  // `per`: elements per item of `size` bytes.
  const auto add = [&](int64_t section, int64_t per, int64_t size) {
    for (const PlacedSegment& placed : sorted) {
      const int64_t begin = placed.segment.begin, end = begin + placed.segment.length;
      Append(segments, section + begin / per * size, section + ((end - 1) / per + 1) * size);
    }
  };
  add(codes.code_begin(), codes.codes_per_byte(), 1);
  add(codes.scale_begin(), BlockCodes::kBlock, codes.scale_size());
  if (codes.nested) add(codes.nested_begin(), BlockCodes::kBlock * BlockCodes::kNestedBlock, 4);
  return segments;
}

// Positions of bytes of the whole in the local ones.
class Places {
 public:
  explicit Places(const std::vector<Segment>& segments) {
    int64_t local = 0;
    for (const Segment& segment : segments) {
      placed_.push_back({segment, local});
      local += segment.length;
    }
  }
  int64_t Of(int64_t at) const {
    const auto after = std::ranges::upper_bound(
        placed_, at, {}, [](const PlacedSegment& placed) { return placed.segment.begin; });
    const PlacedSegment& placed = *(after - 1);
    return placed.local_begin + at - placed.segment.begin;
  }

 private:
  std::vector<PlacedSegment> placed_;
};

std::vector<BlockRun> RunsOf(const BlockCodes& codes, const Layout& part) {
  const Places places(SegmentsOf(codes, part));
  std::vector<BlockRun> runs;
  int64_t out = 0;
  for (const Segment& segment : part.segments()) {
    if (segment.length == 0) continue;
    const int64_t block = segment.begin / BlockCodes::kBlock;
    BlockRun run{.out = out,
                 .first = segment.begin,
                 .length = segment.length,
                 .code = places.Of(codes.code_begin() + segment.begin / codes.codes_per_byte()),
                 .scale = places.Of(codes.scale_begin() + block * codes.scale_size())};
    if (codes.nested) {
      run.nested = places.Of(codes.nested_begin() + block / BlockCodes::kNestedBlock * 4);
    }
    runs.push_back(run);
    out += segment.length;
  }
  return runs;
}

}  // namespace

// The weight's value: decoded from the bytes of stored().
class QuantizedWeight::Storage : public autograd::ParameterStorage {
 public:
  Storage(ParameterPtr stored, const BlockCodes& codes, const Shape& shape)
      : codes(codes), shape(shape), stored_(std::move(stored)) {}
  DType dtype() const override { return value_dtype; }
  ContextPtr context() const override { return stored_->context(); }
  Tensor Read() override {
    const Tensor bytes = stored_->value();
    // The elements of a run lie in several sections of the bytes, so the whole is decoded at once.
    const auto make = [codes = codes, shape = shape, part = part,
                       dtype = value_dtype](const Tensor& source) {
      return ops::DecodeBlocks(source, codes, part, shape, dtype);
    };
    Tensor value = make(bytes);
    value.storage()->set_origin(std::make_shared<StorageOrigin>(StorageOrigin{bytes, make}));
    return value;
  }
  Tensor ReadLocal() override {
    APOGEE_CHECK(is_local(), "parameter \"", stored_->name(),
                 "\" is held in codes, of which this rank has a shard; read it in a forward");
    return Read();
  }
  bool is_local() const override { return stored_->is_local(); }
  bool is_whole() const override { return !is_part && stored_->is_local(); }
  bool is_here() const override { return stored_->is_here(); }
  bool is_made() const override { return !stored_->is_lazy(); }
  std::string ReplaceProblem() const override {
    return "is held in codes of few bits and takes no other value; load weights before it is "
           "quantized";
  }

  const BlockCodes codes;
  Shape shape;
  DType value_dtype = DType::kF32;
  ops::BlockPart part = {};  // by default all
  bool is_part = false;

 private:
  ParameterPtr stored_;
};

QuantizedWeight::QuantizedWeight(ParameterPtr weight, const QuantizeOptions& options)
    : weight_(std::move(weight)) {
  const BlockCodes codes{
      .kind = options.kind, .nested = options.nested, .numel = weight_->shape().numel()};
  stored_ = std::make_shared<Parameter>(weight_->name(), Shape{codes.bytes()});
  stored_->set_requires_grad(false);
  storage_ = std::make_shared<Storage>(stored_, codes, weight_->shape());
  weight_->set_requires_grad(false);
  weight_->zero_grad();
  if (!weight_->has_value()) return;
  // The value goes to a parameter that nobody else has, and with it when it has been encoded.
  const auto old = std::make_shared<Parameter>(weight_->name(), weight_->shape());
  old->set_requires_grad(false);
  old->set_storage(weight_->storage());
  SetValue({weight_->dtype(), weight_->context(), [old] { return old->data(); }},
           weight_->is_lazy());
}

const BlockCodes& QuantizedWeight::codes() const { return storage_->codes; }

void QuantizedWeight::SetValue(LazyValue value, bool lazy) {
  APOGEE_CHECK(IsFloat(value.dtype), "quantize: parameter \"", weight_->name(), "\" is ",
               DTypeName(value.dtype), "; only floats have codes");
  const auto encode = [make = std::move(value.make), codes = storage_->codes] {
    return ops::EncodeBlocks(make(), codes);
  };
  if (lazy) {
    stored_->set_lazy_value({DType::kU8, value.context, encode});
  } else {
    stored_->set_value(encode());
  }
  storage_->value_dtype = value.dtype;
  weight_->set_storage(storage_);
}

void QuantizedWeight::SetBytes(const Tensor& bytes, DType dtype) {
  stored_->set_value(bytes);
  storage_->value_dtype = dtype;
  weight_->set_storage(storage_);
}

void QuantizedWeight::set_dtype(DType dtype) { storage_->value_dtype = dtype; }

Layout QuantizedWeight::StoredLayout(const Layout& part) const {
  return Layout(Shape{codes().bytes()}, {.segments = SegmentsOf(codes(), part)});
}

void QuantizedWeight::SetPart(const Layout& part, const Shape& shape, const Tensor& bytes) {
  stored_->set_part(bytes);
  storage_->shape = shape;
  storage_->part = ops::MakeBlockPart(RunsOf(codes(), part), bytes.context());
  storage_->is_part = true;
  weight_->set_storage(storage_, shape);
}

void QuantizedWeight::Restore() {
  APOGEE_CHECK(!storage_->is_part && weight_->is_local(), "quantize: parameter \"", weight_->name(),
               "\" has only a part here; restore it before boost");
  const Tensor value = weight_->data();
  value.storage()->set_origin(nullptr);
  value.storage()->set_category(MemoryCategory::kParameter);
  weight_->set_storage(Parameter(weight_->name(), value).storage());
}

}  // namespace apogee::nn
