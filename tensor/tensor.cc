// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/tensor.h"

#include <utility>

#include "apogee/tensor/graph_recorder.h"
#include "apogee/tensor/kernel_table.h"

namespace apogee {

Storage::Storage(ContextPtr context, int64_t bytes, MemoryCategory category)
    : context_(std::move(context)),
      bytes_(bytes),
      category_(category),
      data_(context_->allocator().Allocate(bytes, category)) {}

Storage::Storage(ContextPtr context, void* data, int64_t bytes)
    : context_(std::move(context)),
      bytes_(bytes),
      category_(MemoryCategory::kParameter),
      data_(data),
      owned_(false) {}

Storage::Storage(std::shared_ptr<Storage> inside, std::string why)
    : context_(inside->context()),
      bytes_(inside->bytes()),
      category_(inside->category()),
      data_(nullptr),
      owned_(false),
      inside_(std::move(inside)),
      why_sealed_(std::move(why)) {}

void Storage::ThrowSealed() const { Throw(why_sealed_); }

Storage::~Storage() {
  if (owned_) context_->allocator().Free(data_, bytes_, category_);
}

void Storage::set_category(MemoryCategory category) {
  if (category == category_) return;
  if (owned_) context_->ledger().Move(category_, category, bytes_);
  category_ = category;
}

void Storage::set_sample_place(SamplePlace place, int64_t sample_numel) {
  APOGEE_CHECK(sample_numel > 0, "set_sample_place: samples of ", sample_numel, " elements");
  samples_ = std::make_unique<const Samples>(Samples{std::move(place), sample_numel});
}

std::optional<SamplePlace> SamplePlaceOf(const Tensor& inputs) {
  if (!inputs.defined() || inputs.rank() == 0 || inputs.numel() == 0) return std::nullopt;
  const auto& samples = inputs.storage()->samples_;
  if (samples == nullptr || !inputs.is_contiguous()) return std::nullopt;
  // In elements, then in rows: `inputs` may be a view with other rows than the samples.
  const int64_t first = samples->place.first * samples->numel + inputs.offset();
  const int64_t row = inputs.numel() / inputs.size(0);
  if (first % row != 0) return std::nullopt;
  SamplePlace place = samples->place;
  place.first = first / row;
  return place;
}

Tensor Tensor::Empty(const Shape& shape, DType dtype, const ContextPtr& context,
                     MemoryCategory category) {
  APOGEE_CHECK(context != nullptr, "a tensor needs a context, got null: use CpuContext()");
  Tensor tensor;
  tensor.storage_ = std::make_shared<Storage>(context, shape.numel() * DTypeSize(dtype), category);
  tensor.shape_ = shape;
  tensor.strides_ = shape.RowMajorStrides();
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::Wrap(void* data, const Shape& shape, DType dtype, const ContextPtr& context) {
  APOGEE_CHECK(context != nullptr, "a tensor needs a context, got null: use CpuContext()");
  APOGEE_CHECK(data != nullptr || shape.numel() == 0, "Wrap: null memory for shape ", shape);
  Tensor tensor;
  tensor.storage_ = std::make_shared<Storage>(context, data, shape.numel() * DTypeSize(dtype));
  tensor.shape_ = shape;
  tensor.strides_ = shape.RowMajorStrides();
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::Full(const Shape& shape, DType dtype, double value, const ContextPtr& context,
                    MemoryCategory category) {
  Tensor tensor = Empty(shape, dtype, context, category);
  tensor.Fill(value);
  return tensor;
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[static_cast<size_t>(i)] != expected) return false;
    expected *= shape_[i];
  }
  return true;
}

void Tensor::CheckDetached(const char* method) const {
  APOGEE_CHECK(defined(), method, ": the tensor is undefined");
  APOGEE_CHECK(
      autograd_meta_ == nullptr, method,
      ": the tensor belongs to a graph and this method records no gradient; use autograd::", method,
      " or call Detach() first");
}

Tensor Tensor::View(const Shape& shape) const {
  CheckDetached("View");
  APOGEE_CHECK(is_contiguous(), "View: the tensor is not contiguous; call Contiguous() first");
  if (shape.numel() != numel()) CheckOpen();
  APOGEE_CHECK(shape.numel() == numel(), "View: shape ", shape_, " has ", numel(),
               " elements, the new shape ", shape, " has ", shape.numel());
  Tensor view = *this;
  view.shape_ = shape;
  view.strides_ = shape.RowMajorStrides();
  return view;
}

Tensor Tensor::Transpose(int dim0, int dim1) const {
  CheckDetached("Transpose");
  dim0 = shape_.Normalize(dim0);
  dim1 = shape_.Normalize(dim1);
  Tensor view = *this;
  view.shape_.Set(dim0, shape_[dim1]);
  view.shape_.Set(dim1, shape_[dim0]);
  std::swap(view.strides_[static_cast<size_t>(dim0)], view.strides_[static_cast<size_t>(dim1)]);
  return view;
}

Tensor Tensor::Permute(const std::vector<int>& dims) const {
  CheckDetached("Permute");
  const size_t num_dims = static_cast<size_t>(rank());
  APOGEE_CHECK(dims.size() == num_dims, "Permute: ", dims.size(), " dims for shape ", shape_);
  Tensor view = *this;
  std::array<bool, Shape::kMaxRank> taken{};
  for (size_t i = 0; i < num_dims; ++i) {
    const size_t from = static_cast<size_t>(shape_.Normalize(dims[i]));
    APOGEE_CHECK(!taken[from], "Permute: dim ", from, " is named twice for shape ", shape_);
    taken[from] = true;
    view.shape_.Set(static_cast<int>(i), shape_[static_cast<int>(from)]);
    view.strides_[i] = strides_[from];
  }
  return view;
}

Tensor Tensor::Expand(const Shape& shape) const {
  CheckDetached("Expand");
  const int added = shape.rank() - rank();
  Tensor view = *this;
  view.shape_ = shape;
  view.strides_ = {};
  for (int d = 0; d < rank(); ++d) {
    const bool fits = added >= 0 && (shape_[d] == 1 || shape_[d] == shape[d + added]);
    if (!fits) CheckOpen();
    APOGEE_CHECK(fits, "Expand: shape ", shape_, " does not repeat to ", shape,
                 "; each dim, counted from the last, must be equal or 1");
    if (shape_[d] != 1) {
      view.strides_[static_cast<size_t>(d + added)] = strides_[static_cast<size_t>(d)];
    }
  }
  return view;
}

Tensor Tensor::Slice(int dim, int64_t start, int64_t length) const {
  CheckDetached("Slice");
  dim = shape_.Normalize(dim);
  const bool inside = start >= 0 && length >= 0 && start + length <= shape_[dim];
  if (!inside) CheckOpen();
  APOGEE_CHECK(inside, "Slice: [", start, ", ", start + length, ") is outside dim ", dim,
               " of shape ", shape_);
  Tensor view = *this;
  view.shape_.Set(dim, length);
  view.offset_ += start * strides_[static_cast<size_t>(dim)];
  return view;
}

Tensor Tensor::Detach() const {
  Tensor detached = *this;
  detached.autograd_meta_ = nullptr;
  return detached;
}

Tensor Tensor::Sealed(std::string why) const {
  APOGEE_CHECK(defined() && !is_sealed(), "Sealed: the tensor is ",
               defined() ? "sealed already" : "undefined");
  Tensor sealed = *this;
  sealed.storage_ = std::make_shared<Storage>(storage_, std::move(why));
  return sealed;
}

Tensor Tensor::Unsealed() const {
  if (!is_sealed()) return *this;
  Tensor open = *this;
  open.storage_ = storage_->inside();
  return open;
}

Tensor Tensor::Contiguous() const {
  if (is_contiguous()) return *this;
  CheckDetached("Contiguous");
  return Clone();
}

Tensor Tensor::Clone(MemoryCategory category) const {
  CheckDetached("Clone");
  Tensor copy = Empty(shape_, dtype_, context(), category);
  copy.CopyFrom(*this);
  return copy;
}

Tensor Tensor::To(DType dtype, MemoryCategory category) const {
  if (dtype == dtype_) return *this;
  CheckDetached("To");
  Tensor copy = Empty(shape_, dtype, context(), category);
  copy.CopyFrom(*this);
  return copy;
}

Tensor Tensor::To(const ContextPtr& to, MemoryCategory category) const {
  APOGEE_CHECK(defined() && to != nullptr, "To: needs a defined tensor and a context, got ",
               defined() ? "no context" : "an undefined tensor");
  if (to == context() || (to->is_host() && context()->is_host())) return *this;
  CheckDetached("To");
  Tensor copy = Empty(shape_, dtype_, to, category);
  copy.CopyFrom(*this);
  return copy;
}

void Tensor::CopyFrom(const Tensor& src) const {
  APOGEE_CHECK(defined() && src.defined(), "CopyFrom: an operand is undefined");
  APOGEE_CHECK(src.shape_ == shape_, "CopyFrom: source shape ", src.shape_,
               " differs from destination shape ", shape_);
  APOGEE_CHECK(src.dtype_ == dtype_ || (!IsFloat8(src.dtype_) && !IsFloat8(dtype_)),
               "CopyFrom: does not convert ", DTypeName(src.dtype_), " to ", DTypeName(dtype_),
               "; use ops::CastToFloat8(x, dtype, overflow), which says what becomes of numbers "
               "that are too large, or ops::CastFromFloat8(x, dtype)");
  if (numel() == 0) return;
  if (GraphRecorder* const recorder = context()->recorder()) recorder->NoteWrite(*this);
  if (src.device() != device()) {
    CopyAcross(src);
    return;
  }
  // Contexts of two ranks on one GPU have a stream each. The source's queued work must come first,
  // and its memory must not be reused before this copy has read it.
  const bool foreign = HostOf(src.context()) != HostOf(context());
  if (foreign) src.context()->Synchronize();
  CopyArgs args{.x_dtype = src.dtype_,
                .y_dtype = dtype_,
                .x = src.raw(),
                .y = raw(),
                .shape = shape_,
                .x_strides = {},
                .y_strides = {}};
  std::copy(src.strides_.begin(), src.strides_.end(), args.x_strides);
  std::copy(strides_.begin(), strides_.end(), args.y_strides);
  context()->kernels().copy(*context(), args);
  if (foreign) context()->Synchronize();
}

void Tensor::CopyAcross(const Tensor& src) const {
  // Only contiguous bytes cross devices; casts and strided copies are kernels on one side.
  const Tensor from = src.Detach().To(dtype_).Contiguous();
  if (!is_contiguous()) {
    Tensor near = Empty(shape_, dtype_, context());
    near.CopyAcross(from);
    CopyFrom(near);
  } else if (src.context()->is_host()) {
    context()->CopyFromHost(raw(), from.raw(), bytes());
    if (GraphRecorder* const recorder = context()->recorder()) recorder->NoteUpload(*this, from);
  } else if (context()->is_host()) {
    src.context()->CopyToHost(raw(), from.raw(), bytes());
  } else {
    CopyAcross(from.ToHost());
  }
}

void Tensor::Fill(double value) const {
  APOGEE_CHECK(defined() && is_contiguous(), "Fill: needs a defined, contiguous tensor");
  if (numel() == 0) return;
  if (GraphRecorder* const recorder = context()->recorder()) recorder->NoteWrite(*this);
  context()->kernels().fill(*context(),
                            {.dtype = dtype_, .y = raw(), .n = numel(), .value = value});
}

void internal::RefuseHostRead(const DeviceContext& context, const char* what) {
  APOGEE_CHECK(context.recorder() == nullptr, what,
               ": reads values on the host while a CUDA graph is captured, and they have not been "
               "computed yet; call it outside of the captured function");
}

void internal::RefuseDryRead(const Tensor& tensor, const char* what) {
  APOGEE_CHECK(!tensor.context()->is_dry() || tensor.autograd_meta() == nullptr, what,
               ": a dry run computes no values, so its loop cannot depend on them; read this one "
               "only if !context->is_dry()");
}

double Tensor::Item() const {
  APOGEE_CHECK(defined() && numel() == 1, "Item: needs a tensor of one element, got shape ",
               shape_);
  internal::RefuseHostRead(*context(), "Item");
  internal::RefuseDryRead(*this, "Item");
  return ToVector<double>()[0];
}

}  // namespace apogee
