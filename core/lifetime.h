// SPDX-License-Identifier: Apache-2.0

// Lifetime: tells who keeps a pointer to an object that others own whether it is still there.
//
//   class Model { public: std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }
//                 private: Lifetime lifetime_; };
//   Watched<Model> model(given);                 // a pointer, and the token
//   if (model.is_gone()) ...                     // it was destroyed
//
// Copies of an object have lifetimes of their own. Not for objects that another thread destroys.
#ifndef APOGEE_CORE_LIFETIME_H_
#define APOGEE_CORE_LIFETIME_H_

#include <memory>

namespace apogee {

class Lifetime {
 public:
  Lifetime() = default;
  Lifetime(const Lifetime&) {}
  Lifetime& operator=(const Lifetime&) { return *this; }
  // Expires with this object.
  std::weak_ptr<const void> token() const { return alive_; }

 private:
  std::shared_ptr<const void> alive_ = std::make_shared<char>();
};

// A pointer, or null, to a T with lifetime(). Reading it does not check.
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
  // It was not null, and has been destroyed.
  bool is_gone() const { return object_ != nullptr && token_.expired(); }

 private:
  T* object_ = nullptr;
  std::weak_ptr<const void> token_;
};

}  // namespace apogee

#endif  // APOGEE_CORE_LIFETIME_H_
