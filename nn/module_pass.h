// SPDX-License-Identifier: Apache-2.0

// ModulePass: runs a module's hooks around its part of one backward. A call of the module makes
// one, which its graph keeps.
//
//   const auto pass = std::make_shared<ModulePass>(module, pre_hooks, post_hooks);
//   const Tensor y = Forward(ModulePass::Enter(pass, x));
//   ModulePass::Leave(pass, y, autograd::NeedsGrad({x}));
#ifndef APOGEE_NN_MODULE_PASS_H_
#define APOGEE_NN_MODULE_PASS_H_

#include <memory>

#include "apogee/core/hooks.h"
#include "apogee/core/lifetime.h"
#include "apogee/nn/module.h"

namespace apogee::nn {

class ModulePass {
 public:
  // `pre` and `post` are hooks of `module`.
  ModulePass(Module& module, Hooks<Module&>& pre, Hooks<Module&>& post)
      : module_(&module), pre_(pre), post_(post) {}

  // Returns an input of the module as a tensor whose gradient, once complete, ends the pass: the
  // post hooks run when the gradients of all inputs have arrived.
  static Tensor Enter(const std::shared_ptr<ModulePass>& pass, const Tensor& input);
  // The pre hooks run when the first gradient of an output arrives. `input_in_graph`: an input of
  // the module needs a gradient.
  static void Leave(const std::shared_ptr<ModulePass>& pass, const Tensor& output,
                    bool input_in_graph);

 private:
  void CheckAlive() const;
  void Open();
  void Close();

  Watched<Module> module_;
  Hooks<Module&>& pre_;
  Hooks<Module&>& post_;
  int num_inputs_ = 0;  // that were entered into the graph
  int num_done_ = 0;    // whose gradient is complete
  int num_outputs_ = 0;
  bool is_open_ = false;  // the pre hooks have run, the post hooks have not
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODULE_PASS_H_
