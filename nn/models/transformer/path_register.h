// SPDX-License-Identifier: Apache-2.0

// PathRegister: registers modules under names with dots ("attention.self.query"), and makes the
// containers that these need.
//
//   PathRegister paths([this](const std::string& name, const std::shared_ptr<Module>& child) {
//     Register(name, child);
//   });
//   query_ = paths.Add("attention.self.query", std::make_shared<Linear>(64, 64));
#ifndef APOGEE_NN_MODELS_TRANSFORMER_PATH_REGISTER_H_
#define APOGEE_NN_MODELS_TRANSFORMER_PATH_REGISTER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "apogee/nn/layers.h"

namespace apogee::nn {

class PathRegister {
 public:
  using Register = std::function<void(const std::string& name, const std::shared_ptr<Module>&)>;
  // `here` registers a child of the module at which paths begin.
  explicit PathRegister(Register here) : here_(std::move(here)) {}

  template <typename T>
  std::shared_ptr<T> Add(const std::string& path, std::shared_ptr<T> module) {
    AddModule(path, module);
    return module;
  }
  // The same for a container: modules may be added below it.
  template <typename T>
  std::shared_ptr<T> AddContainer(const std::string& path, std::shared_ptr<T> container) {
    AddModule(path, container);
    containers_[path] = container;
    return container;
  }

 private:
  void AddModule(const std::string& path, const std::shared_ptr<Module>& module) {
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos) return here_(path, module);
    const std::string parent = path.substr(0, dot);
    if (!containers_.contains(parent)) AddContainer(parent, std::make_shared<Container>());
    containers_.at(parent)->Register(path.substr(dot + 1), module);
  }

  Register here_;
  std::map<std::string, std::shared_ptr<Container>> containers_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_TRANSFORMER_PATH_REGISTER_H_
