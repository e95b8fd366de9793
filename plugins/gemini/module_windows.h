// SPDX-License-Identifier: Apache-2.0

// ModuleWindows: keeps a model's sharded parameters whole only while the module that uses them
// runs.
//
//   ModuleWindows windows("gemini", model, parameters);
//   Tensor loss = criterion(model(x), y);                // gathers and releases, module by module
//   windows.Backward([&] { autograd::Backward(loss); }); // and again
//
// A module's own parameters are gathered before its forward and before its part of backward, and
// released after each. A module may read a parameter that it does not own (a tied weight, a table
// that a parent slices). The innermost running module gathers it at the first read and from then on
// has it in its window. A read while no module of the model runs throws Error naming the parameter.
//
// Values may stay after use and be gathered ahead (ShardedParameters::schedule). An iteration is
// one backward and everything run since the backward before it. An outermost forward that records
// no graph is an evaluation. If an iteration uses parameters in another order than the one before,
// a warning says so.
//
// PlanModuleChunks makes the chunks for it. A module's parameters fill ceil(bytes / chunk_bytes)
// chunks of their own size, trainable and frozen parameters apart, so a module gathers only the
// values it needs, and there is no common chunk size to search for. The only waste is padding: a
// shard is padded to a multiple of 8 elements, and further so that no two chunks have the same
// size.
//
// Every rank must call the same modules in the same order, use their outputs in the loss, and make
// the same reads of parameters that modules do not own. Otherwise ranks get a CommError that names
// the module. Different ranks may have gradients for different parameters: to use a block without
// effect, add `0 * block(x)` to the loss.
#ifndef APOGEE_PLUGINS_GEMINI_MODULE_WINDOWS_H_
#define APOGEE_PLUGINS_GEMINI_MODULE_WINDOWS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apogee/chunk/chunk_plan.h"
#include "apogee/chunk/sharded_parameters.h"
#include "apogee/nn/module.h"

namespace apogee {

struct ModuleChunkOptions {
  int num_shards = 1;
  int64_t chunk_bytes = 25 << 20;
  // By parameter: the bytes of an element of its value, the same for all parameters of a module
  // (empty: 4), and ChunkRequest::cut_multiple (empty: 1).
  std::vector<int64_t> element_bytes = {};
  std::vector<int64_t> cut_multiples = {};
};

// `parameters`: all of the model's or some of them. Their values are not read.
std::vector<chunk::ChunkSpec> PlanModuleChunks(nn::Module& model,
                                               std::span<const autograd::ParameterPtr> parameters,
                                               const ModuleChunkOptions& options);

class ModuleWindows : public std::enable_shared_from_this<ModuleWindows> {
 public:
  // Wraps the forwards of the model's modules and becomes the on_miss handler of `parameters`.
  // Forwards throw Error once this object is gone. A replaced forward runs inside the wrapper.
  // Throws Error if a forward is wrapped already.
  static std::shared_ptr<ModuleWindows> Make(std::string plugin, nn::Module& model,
                                             std::shared_ptr<chunk::ShardedParameters> parameters);
  ~ModuleWindows();
  ModuleWindows(const ModuleWindows&) = delete;
  ModuleWindows& operator=(const ModuleWindows&) = delete;

  // The most bytes that modules running one inside another have gathered at a time, counting only
  // their own parameters.
  int64_t LargestGatheredBytes(nn::Module& model) const;

  // Runs `backward` and releases everything it gathered when it ends, also by an exception.
  // `before_gather` runs before each gather in it, when all ranks are at the same point.
  void Backward(const std::function<void()>& backward,
                const std::function<void()>& before_gather = nullptr);

 private:
  ModuleWindows(std::string plugin, std::shared_ptr<chunk::ShardedParameters> parameters)
      : plugin_(std::move(plugin)), parameters_(std::move(parameters)) {}
  void Attach(nn::Module& model);

  struct Window {
    std::string name;                              // of the module
    std::vector<size_t> chunks;                    // to gather
    std::vector<std::vector<size_t>> in_backward;  // chunks held for each running part
    std::vector<Subscription> hooks = {};
  };
  // A running forward.
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
  void Acquire(const std::string& name, const std::vector<size_t>& chunks,
               std::vector<size_t>& held);
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
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GEMINI_MODULE_WINDOWS_H_
