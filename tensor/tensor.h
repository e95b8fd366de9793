// SPDX-License-Identifier: Apache-2.0

// Tensor: a cheap handle on a strided view of shared storage.
//
//   ContextPtr context = CpuContext({.num_threads = 2});
//   Tensor a = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2}, context);
//   Tensor b = a.Transpose(0, 1);          // a view: shares a's storage
//   std::vector<float> values = b.ToVector<float>();   // {1, 3, 2, 4}
//
// Copying a Tensor copies the handle. The methods here move and view data and record no gradient;
// the differentiable forms are in autograd/functions. View and copy methods throw Error for a
// tensor that belongs to a graph (has autograd_meta), so that no gradient is lost unnoticed: call
// Detach() first. On a GPU, copies and fills are queued and return at once; ToVector, Item and
// ToHost wait for the values.
#ifndef APOGEE_TENSOR_TENSOR_H_
#define APOGEE_TENSOR_TENSOR_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/device_context.h"
#include "apogee/core/dtype.h"
#include "apogee/core/sample_place.h"
#include "apogee/core/shape.h"

namespace apogee {

// Base of the data that autograd/ attaches to a tensor.
class AutogradMeta {
 public:
  virtual ~AutogradMeta() = default;
};

struct StorageOrigin;

// A block of memory, and the category under which the context's ledger counts it.
class Storage {
 public:
  Storage(ContextPtr context, int64_t bytes, MemoryCategory category);
  // Memory that the caller owns and keeps alive: neither counted nor freed here.
  Storage(ContextPtr context, void* data, int64_t bytes);
  // A sealed storage (Tensor::Sealed): it stands for `inside`, but data() throws Error with `why`.
  Storage(std::shared_ptr<Storage> inside, std::string why);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Throws Error if the storage is sealed.
  void* data() const {
    if (inside_ != nullptr) ThrowSealed();
    return data_;
  }
  // The storage under the seal; null if this storage is not sealed.
  const std::shared_ptr<Storage>& inside() const { return inside_; }
  const std::string& why_sealed() const { return why_sealed_; }
  [[noreturn]] void ThrowSealed() const;
  int64_t bytes() const { return bytes_; }
  MemoryCategory category() const { return category_; }
  // Counts the bytes under another category, e.g. when an activation becomes a gradient.
  void set_category(MemoryCategory category);
  const ContextPtr& context() const { return context_; }
  // For the inputs of a batch: the storage begins with the sample at `place`, and every sample has
  // `sample_numel` elements. See SamplePlaceOf.
  void set_sample_place(SamplePlace place, int64_t sample_numel);
  // Null, or what makes the elements again.
  const std::shared_ptr<const StorageOrigin>& origin() const { return origin_; }
  void set_origin(std::shared_ptr<const StorageOrigin> origin) { origin_ = std::move(origin); }

 private:
  friend std::optional<SamplePlace> SamplePlaceOf(const class Tensor& inputs);
  struct Samples {
    SamplePlace place;
    int64_t numel;
  };

  std::unique_ptr<const Samples> samples_;
  ContextPtr context_;
  int64_t bytes_;
  MemoryCategory category_;
  void* data_;
  bool owned_ = true;
  std::shared_ptr<Storage> inside_;
  std::string why_sealed_;
  std::shared_ptr<const StorageOrigin> origin_;
};

class Tensor {
 public:
  // An undefined tensor has no storage. Call nothing but defined() on it: other methods throw or
  // are invalid.
  Tensor() = default;

  // Uninitialised elements.
  static Tensor Empty(const Shape& shape, DType dtype, const ContextPtr& context,
                      MemoryCategory category = MemoryCategory::kActivation);
  static Tensor Full(const Shape& shape, DType dtype, double value, const ContextPtr& context,
                     MemoryCategory category = MemoryCategory::kActivation);
  static Tensor Zeros(const Shape& shape, DType dtype, const ContextPtr& context,
                      MemoryCategory category = MemoryCategory::kActivation) {
    return Full(shape, dtype, 0, context, category);
  }
  // `values` in row-major order, converted from T's dtype to `dtype` (default: T's own).
  template <typename T>
  static Tensor FromVector(const std::vector<T>& values, const Shape& shape,
                           const ContextPtr& context, DType dtype = DTypeOf<T>());
  // A view of memory that the caller owns and keeps alive: numel contiguous elements of `dtype` at
  // `data`, on the context's device. For programs that allocate parameters and gradients
  // themselves.
  static Tensor Wrap(void* data, const Shape& shape, DType dtype, const ContextPtr& context);
  // Same shape, dtype (or `dtype`) and context as `like`.
  static Tensor EmptyLike(const Tensor& like) { return EmptyLike(like, like.dtype()); }
  static Tensor EmptyLike(const Tensor& like, DType dtype) {
    return Empty(like.shape(), dtype, like.context());
  }

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t stride(int dim) const { return strides_[static_cast<size_t>(shape_.Normalize(dim))]; }
  DType dtype() const { return dtype_; }
  int64_t bytes() const { return numel() * DTypeSize(dtype_); }
  const ContextPtr& context() const { return storage_->context(); }
  Device device() const { return context()->device(); }
  bool is_contiguous() const;
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  // Position of the first element within the storage, in elements.
  int64_t offset() const { return offset_; }

  // The first element, to read and write on the host. Throws Error if T is not this tensor's dtype,
  // or if the tensor is in a GPU's memory.
  template <typename T>
  T* data() const;
  // As data(), but on any device. Only kernels may dereference it.
  template <typename T>
  T* address() const;
  // As address(), untyped.
  void* raw() const { return static_cast<char*>(storage_->data()) + offset_ * DTypeSize(dtype_); }

  // Views of the same storage.
  Tensor View(const Shape& shape) const;  // contiguous tensors only
  Tensor Transpose(int dim0, int dim1) const;
  // Dim i of the result is dim dims[i] of this tensor; `dims` has every dim once.
  Tensor Permute(const std::vector<int>& dims) const;
  // Repeats dims of size 1, and leading dims that are missing, as `shape` says. The repeated
  // elements are the same memory: only read the view.
  Tensor Expand(const Shape& shape) const;
  Tensor Slice(int dim, int64_t start, int64_t length) const;
  // The same elements, outside of any graph.
  Tensor Detach() const;

  // Returns the same tensor, in the same graph, whose elements cannot be reached: reading or
  // writing them, here or in a view, throws Error with `why`. For a tensor that looks like the full
  // result but is only a part of it. Shape, dtype and context can still be asked for. Unsealed()
  // makes the elements readable again.
  Tensor Sealed(std::string why) const;
  // The tensor without its seal; the tensor itself if it is not sealed.
  Tensor Unsealed() const;
  bool is_sealed() const { return defined() && storage_->inside() != nullptr; }
  // The text of that Error; "" if the tensor is not sealed.
  std::string why_sealed() const { return is_sealed() ? storage_->why_sealed() : std::string(); }
  // Throws that Error if the tensor is sealed. Call it before a check of shapes, whose message
  // would be less helpful.
  void CheckOpen() const {
    if (is_sealed()) storage_->ThrowSealed();
  }

  // Copies. Contiguous() and To() return the tensor itself if there is nothing to do.
  Tensor Contiguous() const;
  Tensor Clone(MemoryCategory category = MemoryCategory::kActivation) const;
  Tensor To(DType dtype, MemoryCategory category = MemoryCategory::kActivation) const;
  // A copy in another context's memory; the tensor itself if it is there already, or if both
  // contexts are on the host.
  Tensor To(const ContextPtr& context, MemoryCategory category = MemoryCategory::kActivation) const;
  // A copy in the host's memory, where data() works; the tensor itself if it is there already.
  // Waits for a GPU.
  Tensor ToHost() const { return To(HostOf(context())); }
  // Writes src (same shape, any dtype, layout and device) into this tensor's elements.
  void CopyFrom(const Tensor& src) const;
  void Fill(double value) const;
  // The inverse of ToVector: `values` in row-major order, converted from T's dtype.
  template <typename T>
  void SetValues(const std::vector<T>& values) const;

  // The values on the host in row-major order, converted to T. Waits for a GPU.
  template <typename T>
  std::vector<T> ToVector() const;
  // The value of a one-element tensor. Waits for a GPU.
  double Item() const;

  // True if no other tensor shares the storage, so that writing in place changes no other tensor.
  bool is_sole_owner() const { return storage_.use_count() == 1; }

  const std::shared_ptr<AutogradMeta>& autograd_meta() const { return autograd_meta_; }
  void set_autograd_meta(std::shared_ptr<AutogradMeta> meta) { autograd_meta_ = std::move(meta); }

 private:
  void CheckDetached(const char* method) const;
  // CopyFrom between devices.
  void CopyAcross(const Tensor& src) const;

  std::shared_ptr<Storage> storage_;
  Shape shape_;
  std::array<int64_t, Shape::kMaxRank> strides_{};
  int64_t offset_ = 0;
  DType dtype_ = DType::kF32;
  std::shared_ptr<AutogradMeta> autograd_meta_;
};

// The elements of a storage, in a smaller form: make(source) has the same bits. A graph keeps
// `source` in their place (autograd/saved_tensor.h).
struct StorageOrigin {
  Tensor source;
  std::function<Tensor(const Tensor& source)> make;
};

// The place of the first row of a batch's inputs, or of a slice of them. nullopt if the storage has
// no place (Storage::set_sample_place), and for a tensor that is strided or begins within a row.
std::optional<SamplePlace> SamplePlaceOf(const Tensor& inputs);

template <typename T>
T* Tensor::address() const {
  APOGEE_CHECK(defined(), "data(): the tensor is undefined");
  APOGEE_CHECK(DTypeOf<T>() == dtype_, "data<", DTypeName(DTypeOf<T>()), ">() of a ",
               DTypeName(dtype_), " tensor");
  return static_cast<T*>(raw());
}

template <typename T>
T* Tensor::data() const {
  T* const first = address<T>();
  APOGEE_CHECK(context()->is_host(), "data(): the tensor is on ", device().ToString(),
               "; read it with ToVector() or ToHost()");
  return first;
}

template <typename T>
Tensor Tensor::FromVector(const std::vector<T>& values, const Shape& shape,
                          const ContextPtr& context, DType dtype) {
  APOGEE_CHECK(static_cast<int64_t>(values.size()) == shape.numel(), "FromVector: ", values.size(),
               " values for shape ", shape);
  APOGEE_CHECK(context != nullptr, "a tensor needs a context, got null: use CpuContext()");
  Tensor tensor = Empty(shape, DTypeOf<T>(), HostOf(context));
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor.To(dtype).To(context);
}

namespace internal {
// Throws Error while the context's work is captured into a CUDA graph: `what`, the name of the
// method that calls this, reads values on the host.
void RefuseHostRead(const DeviceContext& context, const char* what);
// Throws Error if a dry run reads a value that it has not computed: one that belongs to a graph.
void RefuseDryRead(const Tensor& tensor, const char* what);
}  // namespace internal

template <typename T>
std::vector<T> Tensor::ToVector() const {
  APOGEE_CHECK(
      defined(),
      "ToVector: the tensor is undefined. A parameter's grad() is undefined if backward did not "
      "reach the parameter, or if a plugin shards the gradients: read those with ParamView::grad "
      "of the optimizer");
  internal::RefuseHostRead(*context(), "ToVector");
  internal::RefuseDryRead(*this, "ToVector");
  const Tensor host = Detach().ToHost().To(DTypeOf<T>()).Contiguous();
  const T* begin = host.data<T>();
  return std::vector<T>(begin, begin + host.numel());
}

template <typename T>
void Tensor::SetValues(const std::vector<T>& values) const {
  CopyFrom(FromVector(values, shape_, HostOf(context())));
}

}  // namespace apogee

#endif  // APOGEE_TENSOR_TENSOR_H_
