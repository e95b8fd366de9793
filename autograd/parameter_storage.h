// SPDX-License-Identifier: Apache-2.0

// ParameterStorage: where the value of a parameter is. A parameter reads its value only through its
// storage, so code that keeps values in its own way (made later, only a part on each rank) needs no
// word in autograd: it writes a storage.
//
//   class MappedFile : public autograd::ParameterStorage { ... };
//   parameter.set_storage(std::make_shared<MappedFile>(path));
//   parameter.value();                                        // MappedFile::Read
//
// Three come with autograd: a tensor, a tensor that is only a part, and a tensor that the first
// read makes.
#ifndef APOGEE_AUTOGRAD_PARAMETER_STORAGE_H_
#define APOGEE_AUTOGRAD_PARAMETER_STORAGE_H_

#include <string>
#include <utility>

#include "apogee/autograd/parameter.h"

namespace apogee::autograd {

class ParameterStorage {
 public:
  virtual ~ParameterStorage() = default;

  // Of the value. Neither makes it nor waits for it.
  virtual DType dtype() const = 0;
  virtual ContextPtr context() const = 0;
  // The whole value, in the parameter's shape, for compute. May wait, or communicate if
  // !is_local(). Throws Error if this rank cannot read it.
  virtual Tensor Read() = 0;
  // The elements that this rank has now, for optimizers, loaders and collectives to read and
  // write. May wait; never communicates.
  virtual Tensor ReadLocal() = 0;

  // Whether Read needs no other rank.
  virtual bool is_local() const { return true; }
  // Whether ReadLocal returns all elements that the model declared.
  virtual bool is_whole() const { return true; }
  // False if other ranks have all of the value: Read throws, ReadLocal returns an empty tensor.
  virtual bool is_here() const { return true; }
  // False if the value takes no memory until Read or ReadLocal makes it.
  virtual bool is_made() const { return true; }
  // Not empty if a new tensor cannot take this value's place: the rest of a sentence that begins
  // with the parameter's name.
  virtual std::string ReplaceProblem() const { return ""; }
};

// A value in memory. Activation memory becomes parameter memory.
class WholeStorage : public ParameterStorage {
 public:
  explicit WholeStorage(const Tensor& value);
  DType dtype() const override { return value_.dtype(); }
  ContextPtr context() const override { return value_.context(); }
  Tensor Read() override { return value_; }
  Tensor ReadLocal() override { return value_; }

 private:
  Tensor value_;
};

// A tensor that has only a part of the elements that the model declared; other ranks have the rest.
class PartStorage : public WholeStorage {
 public:
  using WholeStorage::WholeStorage;
  bool is_whole() const override { return false; }
};

// If `make` throws, Read throws the same, and the next one tries again.
class LazyStorage : public ParameterStorage {
 public:
  // `name` and `shape`: of the parameter. Throws Error without a context or a function.
  LazyStorage(std::string name, const Shape& shape, LazyValue lazy);
  DType dtype() const override { return lazy_.dtype; }
  ContextPtr context() const override { return lazy_.context; }
  Tensor Read() override;
  Tensor ReadLocal() override { return Read(); }
  bool is_made() const override { return value_.defined(); }

 private:
  std::string name_;
  Shape shape_;
  LazyValue lazy_;
  Tensor value_;  // undefined until it is made
};

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_PARAMETER_STORAGE_H_
