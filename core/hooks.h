// SPDX-License-Identifier: Apache-2.0

// Hooks: the functions that run at one kind of event, in the order in which they were added.
//
//   Hooks<Module&> before_forward;
//   HookHandle handle = before_forward.Add([](Module& module) { ... });   // until it is removed
//   handle.Remove();
//   Subscription own = before_forward.Add([this](Module&) { ... });   // until `own` is destroyed
//   before_forward.Run(module);
//
// A hook may add hooks, which then run for the same event, and remove hooks, also itself. The
// captures of a removed hook live until the next event, or until another hook is added. Handles and
// subscriptions may outlive the Hooks. Not thread-safe.
#ifndef APOGEE_CORE_HOOKS_H_
#define APOGEE_CORE_HOOKS_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace apogee {

// Names a hook that was added. A handle that is dropped leaves its hook there.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::weak_ptr<bool> removed) : removed_(std::move(removed)) {}
  void Remove() {
    if (const auto removed = removed_.lock()) *removed = true;
  }

 private:
  std::weak_ptr<bool> removed_;
};

// Removes its hook when it is destroyed. An object whose methods a hook calls holds one.
class Subscription {
 public:
  Subscription() = default;
  Subscription(HookHandle handle) : handle_(std::move(handle)) {}  // NOLINT: see above
  Subscription(Subscription&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Subscription& operator=(Subscription&& other) noexcept {
    handle_.Remove();
    handle_ = std::exchange(other.handle_, {});
    return *this;
  }
  ~Subscription() { handle_.Remove(); }

 private:
  HookHandle handle_;
};

template <typename... Args>
class Hooks {
 public:
  using Function = std::function<void(Args...)>;

  HookHandle Add(Function function) {
    if (running_ == 0) DropRemoved();
    const auto hook = std::make_shared<Hook>(Hook{std::move(function), false});
    hooks_.push_back(hook);
    return HookHandle(std::shared_ptr<bool>(hook, &hook->removed));
  }
  void Run(Args... args) {
    ++running_;
    struct End {  // also when a hook throws
      Hooks* self;
      ~End() {
        if (--self->running_ == 0) self->DropRemoved();
      }
    } end{this};
    // By index: a hook may add hooks.
    for (size_t i = 0; i < hooks_.size(); ++i) {
      const std::shared_ptr<Hook> hook = hooks_[i];
      if (!hook->removed) hook->function(args...);
    }
  }
  bool empty() const {
    for (const auto& hook : hooks_) {
      if (!hook->removed) return false;
    }
    return true;
  }

 private:
  struct Hook {
    Function function;
    bool removed;
  };
  void DropRemoved() {
    std::erase_if(hooks_, [](const auto& hook) { return hook->removed; });
  }

  std::vector<std::shared_ptr<Hook>> hooks_;
  int running_ = 0;
};

}  // namespace apogee

#endif  // APOGEE_CORE_HOOKS_H_
