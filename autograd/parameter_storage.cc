// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/parameter_storage.h"

#include "apogee/core/error.h"

namespace apogee::autograd {

WholeStorage::WholeStorage(const Tensor& value) : value_(value.Detach()) {
  if (value_.storage()->category() == MemoryCategory::kActivation) {
    value_.storage()->set_category(MemoryCategory::kParameter);
  }
}

LazyStorage::LazyStorage(std::string name, const Shape& shape, LazyValue lazy)
    : name_(std::move(name)), shape_(shape), lazy_(std::move(lazy)) {
  APOGEE_CHECK(lazy_.make != nullptr && lazy_.context != nullptr, "parameter \"", name_,
               "\": a lazy value needs a context, and a function that makes it");
}

Tensor LazyStorage::Read() {
  if (value_.defined()) return value_;
  const Tensor made = lazy_.make();
  APOGEE_CHECK(
      made.defined() && made.shape() == shape_ && made.dtype() == lazy_.dtype &&
          made.context() == lazy_.context,
      "parameter \"", name_,
      "\": its lazy value is not of the shape or dtype, or not in the context, that it was "
      "said to have");
  value_ = WholeStorage(made).ReadLocal();
  lazy_.make = nullptr;  // the objects it captured may not live longer
  return value_;
}

}  // namespace apogee::autograd
