// SPDX-License-Identifier: Apache-2.0

// ElsewhereStorage: the value of a parameter that lies on another pipeline stage.
//
//   parameter.set_storage(std::make_shared<ElsewhereStorage>(parameter, dtype, "it lies on ..."));
//   parameter.is_here();      // false
//   parameter.data();         // an empty tensor [0]
//   parameter.value();        // throws Error with that text
#ifndef APOGEE_PLUGINS_PIPELINE_ELSEWHERE_H_
#define APOGEE_PLUGINS_PIPELINE_ELSEWHERE_H_

#include <string>

#include "apogee/autograd/parameter.h"
#include "apogee/core/error.h"

namespace apogee::pipeline {

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

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_ELSEWHERE_H_
