// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/hybrid/elsewhere.h"

#include <memory>

namespace apogee {
namespace {

// The value of a parameter that other ranks hold: no element here, and an Error for readers.
class ElsewhereStorage : public autograd::ParameterStorage {
 public:
  // `where`: the place of the value, and the remedy.
  ElsewhereStorage(const autograd::Parameter& parameter, DType dtype, const std::string& where)
      : none_(Tensor::Empty({0}, dtype, parameter.context(), MemoryCategory::kParameter)),
        problem_("parameter \"" + parameter.name() + "\" is not on this rank: " + where) {}
  DType dtype() const override { return none_.dtype(); }
  ContextPtr context() const override { return none_.context(); }
  Tensor Read() override { Throw(problem_); }
  Tensor ReadLocal() override { return none_; }
  bool is_local() const override { return false; }
  bool is_whole() const override { return false; }
  bool is_here() const override { return false; }
  std::string ReplaceProblem() const override {
    return "is not on this rank and takes no value here";
  }

 private:
  Tensor none_;
  std::string problem_;
};

}  // namespace

void DropValue(autograd::Parameter& parameter, DType dtype, const std::string& where) {
  parameter.set_grad(Tensor());
  parameter.set_storage(std::make_shared<ElsewhereStorage>(parameter, dtype, where));
}

}  // namespace apogee
