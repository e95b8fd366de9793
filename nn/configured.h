// SPDX-License-Identifier: Apache-2.0

// Configured: what a module is beyond the names and shapes of its parameters: heads, activations,
// epsilons. A checkpoint keeps it, and a run that resumes with another is refused: the same weights
// would be another function.
//
//   class MyModel : public nn::Module, public nn::Configured {
//     void DescribeConfig(nn::ConfigTexts& texts) const override {
//       texts.function["window"] = nn::ConfigText(window_);
//       texts.training["dropout"] = nn::ConfigText(dropout_);
//     }
//   };
//   nn::ConfigTexts texts = nn::ConfigOf(model);       // "window", or "encoder.window" of a child
#ifndef APOGEE_NN_CONFIGURED_H_
#define APOGEE_NN_CONFIGURED_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/nn/module.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::nn {

struct ConfigTexts {
  // Settings that another value makes another function of the same weights. UTF-8.
  std::map<std::string, std::string> function;
  // Settings of training alone, which may change on the way.
  std::map<std::string, std::string> training;
  // Whether they say all: modules within are not asked.
  bool complete = false;
};

// Texts that are equal where the values are.
std::string ConfigText(int64_t value);
std::string ConfigText(double value);
std::string ConfigText(bool value);
std::string ConfigText(Activation value);
std::string ConfigText(const std::vector<int64_t>& value);

class Configured {
 public:
  virtual ~Configured() = default;
  virtual void DescribeConfig(ConfigTexts& texts) const = 0;
};

// Those of the whole tree, under the modules' full names.
ConfigTexts ConfigOf(Module& model);

}  // namespace apogee::nn

#endif  // APOGEE_NN_CONFIGURED_H_
