// SPDX-License-Identifier: Apache-2.0

// ModuleWindows: a model's sharded parameters are whole while the module that uses them runs, and
// at no other time.
//
//   ModuleWindows windows("gemini", model, parameters);
//   Tensor loss = criterion(model(x), y);                // gathers and releases, module by module
//   windows.Backward([&] { autograd::Backward(loss); }); // and again
//
// A module's own parameters are gathered before its forward and before its part of backward, and
// released after. One that it reads without owning it (a tied weight, a table that a parent slices)
// is gathered when it is first read, by the innermost module that runs, which from then on has it
// in its window too. A read while no module of the model runs throws Error naming the parameter.
//
// Values may stay after use and be gathered ahead (ShardedParameters::schedule): one backward, and
// what was run since the one before, is an iteration; an outermost forward that records no graph is
// an evaluation. When an iteration uses parameters in another order than the one before, a warning
// says so.
//
// Every rank must call the same modules in the same order, use what they put out in the loss, and
// read what they do not own alike; ranks that do not get a CommError that names the module. Which
// parameters get gradients may differ from rank to rank: `0 * block(x)` added to the loss uses a
// block without an effect.
#ifndef APOGEE_PLUGINS_MODULE_WINDOWS_H_
#define APOGEE_PLUGINS_MODULE_WINDOWS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/chunk/sharded_parameters.h"
#include "apogee/nn/module.h"

namespace apogee {

class ModuleWindows {
 public:
  // Wraps the forwards of the model's modules, which throw Error once this object is gone, and
  // becomes `parameters`' on_miss. What has replaced a forward runs inside the wrapper. Throws
  // Error when one is wrapped already.
  ModuleWindows(std::string plugin, nn::Module& model,
                std::shared_ptr<chunk::ShardedParameters> parameters);
  ~ModuleWindows();
  ModuleWindows(const ModuleWindows&) = delete;
  ModuleWindows& operator=(const ModuleWindows&) = delete;

  // The most that modules running one in another have gathered at a time, as far as their own
  // parameters tell.
  int64_t LargestGatheredBytes(nn::Module& model) const;

  // Runs `backward`; what it has gathered is released when it ends, also by an exception.
  // `before_gather` runs in it before each gather: there all ranks are at the same point.
  void Backward(const std::function<void()>& backward,
                const std::function<void()>& before_gather = nullptr);

 private:
  struct Window {
    std::string name;                              // of the module
    std::vector<size_t> chunks;                    // what to gather
    std::vector<std::vector<size_t>> in_backward;  // what is held for each part under way
    bool has_hooks = false;
  };
  // A forward under way.
  struct Frame {
    nn::Module* module;
    std::vector<size_t> held;
  };

  Tensor Forward(nn::Module& module, const Tensor& x, const nn::Module::ForwardFunction& forward);
  void BeginOutermost();
  void EndForward();
  void AddBackwardHooks(nn::Module& module);
  void OnMiss(size_t index);
  // Throws CommError that names the module.
  void Acquire(const Window& window, const std::vector<size_t>& chunks, std::vector<size_t>& held);
  void Release(std::vector<size_t>& held);
  void EndBackward();

  std::string plugin_;
  std::shared_ptr<chunk::ShardedParameters> parameters_;
  std::map<nn::Module*, Window> windows_;
  std::vector<Frame> frames_;  // innermost last
  bool backward_ = false;
  bool evaluation_ = false;
  std::function<void()> before_gather_;
  std::vector<size_t> late_;  // read in backward outside of a window
  std::shared_ptr<void> alive_ = std::make_shared<int>();
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_MODULE_WINDOWS_H_
