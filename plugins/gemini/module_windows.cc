// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/gemini/module_windows.h"

#include <algorithm>
#include <set>
#include <utility>

#include "apogee/autograd/grad_mode.h"
#include "apogee/core/log.h"

namespace apogee {

namespace {

// Parameters of different kinds share no chunk: trained, frozen, and bytes of quantized weights.
int KindOf(const autograd::Parameter& parameter) {
  if (parameter.has_value() && !IsFloat(parameter.dtype())) return 2;
  return parameter.requires_grad() ? 0 : 1;
}

}  // namespace

std::vector<chunk::ChunkSpec> PlanModuleChunks(nn::Module& model,
                                               std::span<const autograd::ParameterPtr> parameters,
                                               const ModuleChunkOptions& options) {
  std::map<const autograd::Parameter*, int> owner;
  const std::vector<nn::Module*> modules = model.Modules();
  for (size_t m = 0; m < modules.size(); ++m) {  // parents first: the innermost module is the owner
    for (const auto& parameter : modules[m]->Parameters()) {
      owner[parameter.get()] = static_cast<int>(m);
    }
  }
  std::vector<chunk::ChunkRequest> requests;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const autograd::Parameter& parameter = *parameters[i];
    requests.push_back(
        {.numel = parameter.shape().numel(),
         .element_bytes = options.element_bytes.empty() ? 4 : options.element_bytes[i],
         .key = 3 * owner.at(&parameter) + KindOf(parameter),
         .cut_multiple = options.cut_multiples.empty() ? 1 : options.cut_multiples[i]});
  }
  return chunk::PlanChunks(requests, {.chunk_bytes = options.chunk_bytes,
                                      .num_shards = options.num_shards,
                                      .distinct_sizes = true});
}

std::shared_ptr<ModuleWindows> ModuleWindows::Make(
    std::string plugin, nn::Module& model, std::shared_ptr<chunk::ShardedParameters> parameters) {
  const std::shared_ptr<ModuleWindows> made(
      new ModuleWindows(std::move(plugin), std::move(parameters)));
  made->Attach(model);
  return made;
}

void ModuleWindows::Attach(nn::Module& model) {
  std::map<const autograd::Parameter*, size_t> chunk_of;
  for (size_t i = 0; i < parameters_->parameters().size(); ++i) {
    chunk_of[parameters_->parameters()[i].get()] = parameters_->ChunkOf(i);
  }
  std::set<const autograd::Parameter*> owned;
  std::vector<std::pair<std::string, nn::Module*>> modules = model.NamedModules();
  std::ranges::reverse(modules);  // children first: a parent keeps only its own parameters
  for (const auto& [full_name, module] : modules) {
    if (windows_.contains(module)) continue;  // held twice
    Window& window = windows_[module];
    window.name = full_name.empty() ? "the model" : "module \"" + full_name + "\"";
    for (const autograd::ParameterPtr& parameter : module->Parameters()) {
      const auto chunk = chunk_of.find(parameter.get());
      if (!owned.insert(parameter.get()).second || chunk == chunk_of.end()) continue;
      if (std::ranges::find(window.chunks, chunk->second) == window.chunks.end()) {
        window.chunks.push_back(chunk->second);
      }
    }
    // A layer without own parameters may read others' before its first backward.
    const bool is_layer = module->Modules().size() == 1;
    if (is_layer || !window.chunks.empty()) AddBackwardHooks(*module);
    module->WrapForward([weak = weak_from_this(), module = module, name = plugin_](
                            const Tensor& x, const nn::Module::ForwardFunction& forward) {
      const std::shared_ptr<ModuleWindows> self = weak.lock();
      APOGEE_CHECK(self != nullptr, name,
                   ": the model was run after the plugin that shards its parameters was destroyed; "
                   "the plugin must outlive every use of the model");
      return self->Forward(*module, x, forward);
    });
  }
  parameters_->set_on_miss([this](size_t index) { OnMiss(index); });
}

ModuleWindows::~ModuleWindows() {
  parameters_->set_on_miss([plugin = plugin_, all = parameters_.get()](size_t index) {
    Throw("parameter \"", all->parameters()[index]->name(), "\" was read after the ", plugin,
          " plugin that shards it was destroyed; this rank has a part of it only "
          "(Parameter::data)");
  });
}

int64_t ModuleWindows::LargestGatheredBytes(nn::Module& model) const {
  int64_t largest = 0;
  const auto named = model.NamedModules();
  for (const auto& [name, inner] : named) {
    std::set<size_t> chunks;
    for (const auto& [outer_name, outer] : named) {
      const bool encloses =
          outer_name.empty() || outer_name == name || name.starts_with(outer_name + ".");
      if (!encloses) continue;
      const std::vector<size_t>& own = windows_.at(outer).chunks;
      chunks.insert(own.begin(), own.end());
    }
    int64_t bytes = 0;
    for (const size_t chunk : chunks) bytes += parameters_->GatheredBytes(chunk);
    largest = std::max(largest, bytes);
  }
  return largest;
}

void ModuleWindows::AddBackwardHooks(nn::Module& module) {
  Window& window = windows_.at(&module);
  if (!window.hooks.empty()) return;
  window.hooks.emplace_back(module.AddPreBackwardHook([this, &window](nn::Module&) {
    if (backward_) Acquire(window.name, window.chunks, window.in_backward.emplace_back());
  }));
  window.hooks.emplace_back(module.AddPostBackwardHook([this, &window](nn::Module&) {
    if (window.in_backward.empty()) return;
    for (const size_t chunk : window.in_backward.back()) parameters_->ReleaseInBackward(chunk);
    window.in_backward.pop_back();
  }));
}

Tensor ModuleWindows::Forward(nn::Module& module, const Tensor& x,
                              const nn::Module::ForwardFunction& forward) {
  // Keeps a hook that is set: Recompute's, which saves nothing, or an enclosing forward's.
  std::optional<autograd::SavedTensorHookGuard> saved;
  if (autograd::CurrentPackHook() == nullptr) saved.emplace(parameters_->PackValues());
  if (frames_.empty() && !backward_) BeginOutermost();
  struct End {  // also when the forward throws
    ModuleWindows* self;
    ~End() { self->EndForward(); }
  } end{this};
  frames_.push_back({&module, {}});
  const Window& window = windows_.at(&module);
  Acquire(window.name, window.chunks, frames_.back().held);
  return forward(x);
}

void ModuleWindows::BeginOutermost() {
  parameters_->CheckGathered();
  evaluation_ = !autograd::GradModeEnabled();
  if (evaluation_) parameters_->schedule().BeginEvaluation();
}

void ModuleWindows::EndForward() {
  Release(frames_.back().held);
  frames_.pop_back();
  if (frames_.empty() && std::exchange(evaluation_, false)) {
    parameters_->schedule().EndEvaluation();
  }
}

void ModuleWindows::OnMiss(size_t index) {
  const size_t chunk = parameters_->ChunkOf(index);
  if (!frames_.empty()) {
    Window& window = windows_.at(frames_.back().module);
    window.chunks.push_back(chunk);
    AddBackwardHooks(*frames_.back().module);
    Acquire(window.name, {chunk}, frames_.back().held);
  } else if (backward_) {
    Acquire("no module", {chunk}, late_);
  } else {
    Throw(plugin_, ": parameter \"", parameters_->parameters()[index]->name(),
          "\" was read outside of the model's forwards and of booster.backward, where its other "
          "elements are on other ranks. Read it in a module's forward, call booster.backward(loss, "
          "optimizer) instead of autograd::Backward, and take this rank's part (Plugin::LayoutOf) "
          "from Parameter::data()");
  }
}

void ModuleWindows::Acquire(const std::string& name, const std::vector<size_t>& chunks,
                            std::vector<size_t>& held) try {
  for (const size_t chunk : chunks) {
    if (before_gather_ && !parameters_->is_acquired(chunk)) before_gather_();
    parameters_->Acquire(chunk);
    held.push_back(chunk);
  }
} catch (const comm::CommError& error) {
  throw comm::CommError(internal::Concat(
      plugin_, ": gathering the parameters of ", name, " for its ",
      backward_ ? "backward" : "forward", ": ", error.what(),
      ". Every rank must run the same modules in the same order, forward and backward, in training "
      "and in evaluation. If a rank does not need a module's output, add 0 times that output to "
      "its loss, or leave the module out on all ranks"));
}

void ModuleWindows::Release(std::vector<size_t>& held) {
  for (const size_t chunk : std::exchange(held, {})) parameters_->Release(chunk);
}

void ModuleWindows::Backward(const std::function<void()>& backward,
                             const std::function<void()>& before_gather) {
  struct End {
    ModuleWindows* self;
    ~End() { self->EndBackward(); }
  } end{this};
  backward_ = true;
  before_gather_ = before_gather;
  // For modules whose forward runs again in backward.
  const autograd::SavedTensorHookGuard saved(parameters_->PackValues());
  backward();
}

void ModuleWindows::EndBackward() {
  backward_ = false;
  before_gather_ = nullptr;
  Release(late_);
  for (auto& [module, window] : windows_) {
    for (std::vector<size_t>& held : window.in_backward) Release(held);
    window.in_backward.clear();
  }
  parameters_->DropRetained();
  const bool first_rank = parameters_->group() == nullptr || parameters_->group()->rank() == 0;
  const bool changed = parameters_->schedule().EndIteration();
  if (changed && first_rank && parameters_->schedule().capacity_bytes() > 0) {
    LogWarning(plugin_,
               ": this iteration used the model's parameters in another order than the one before; "
               "gathering ahead and keeping values will follow the new order");
  }
}

}  // namespace apogee
