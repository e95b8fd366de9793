// SPDX-License-Identifier: Apache-2.0

// Lifetime: lets the holder of a raw pointer find out whether the object still exists.
//
//   class Model {
//    public:
//     std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }
//    private:
//     Lifetime lifetime_;
//   };
//   Watched<Model> model(given);      // the pointer `given` and its token
//   if (model.is_gone()) ...          // the object was destroyed
//
// A copy of an object has a lifetime of its own. Don't use Lifetime for objects that another thread
// may destroy meanwhile: is_gone() would be out of date at once.
#ifndef APOGEE_CORE_LIFETIME_H_
#define APOGEE_CORE_LIFETIME_H_

#include <memory>

namespace apogee {

class Lifetime {
 public:
  Lifetime() = default;
  Lifetime(const Lifetime&) {}
  Lifetime& operator=(const Lifetime&) { return *this; }
  // A token that expires with this object.
  std::weak_ptr<const void> token() const { return alive_; }

 private:
  std::shared_ptr<const void> alive_ = std::make_shared<char>();
};

// A pointer, possibly null, to a T that has lifetime(). Dereferencing does not check.
template <typename T>
class Watched {
 public:
  Watched() = default;
  Watched(T* object) : object_(object) {  // NOLINT: it is a pointer
    if (object != nullptr) token_ = object->lifetime();
  }
  T* get() const { return object_; }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }
  operator T*() const { return object_; }  // NOLINT: as above
  // Whether the pointer was not null and its object has been destroyed.
  bool is_gone() const { return object_ != nullptr && token_.expired(); }

 private:
  T* object_ = nullptr;
  std::weak_ptr<const void> token_;
};

}  // namespace apogee

#endif  // APOGEE_CORE_LIFETIME_H_
