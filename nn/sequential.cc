// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/chain.h"

namespace apogee::nn {
namespace {

class FunctionModule : public Module {
 public:
  explicit FunctionModule(std::function<Tensor(const Tensor& x)> function)
      : function_(std::move(function)) {}
  Tensor Forward(const Tensor& x) override { return function_(x); }

 private:
  std::function<Tensor(const Tensor& x)> function_;
};

std::vector<std::pair<std::string, std::shared_ptr<Module>>> Numbered(
    std::vector<std::shared_ptr<Module>> modules) {
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> named;
  for (std::shared_ptr<Module>& module : modules) {
    named.emplace_back(std::to_string(named.size()), std::move(module));
  }
  return named;
}

}  // namespace

std::shared_ptr<Module> Function(std::function<Tensor(const Tensor& x)> function) {
  APOGEE_CHECK(function != nullptr, "nn::Function: the function is null");
  return std::make_shared<FunctionModule>(std::move(function));
}

Sequential::Sequential(std::vector<std::shared_ptr<Module>> modules)
    : Sequential(Numbered(std::move(modules))) {}

Sequential::Sequential(std::vector<std::pair<std::string, std::shared_ptr<Module>>> modules)
    : modules_(std::move(modules)) {
  APOGEE_CHECK(!modules_.empty(), "nn::Sequential: needs at least one module");
  for (const auto& [name, module] : modules_) {
    APOGEE_CHECK(!name.empty(), "nn::Sequential: a module has no name");
    Register(name, module);
  }
}

std::vector<Piece> Sequential::MakePieces() {
  std::vector<Piece> pieces;
  for (const auto& [name, module] : modules_) {
    pieces.push_back(
        {.name = module->full_name(),
         .modules = {module.get()},
         .forward = [module = module.get()](const Tensor& x) { return (*module)(x); }});
  }
  return pieces;
}

}  // namespace apogee::nn
