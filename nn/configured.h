// SPDX-License-Identifier: Apache-2.0

// Configured: the settings of a module that the names and shapes of its parameters do not show:
// number of heads, activations, epsilons. A checkpoint records them. Resuming with other settings
// is refused, since the same weights would compute another function.
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
#include "apogee/tensor/ops/kinds.h"

namespace apogee::nn {

struct ConfigTexts {
  // Settings that define the function: with another value the same weights compute something else.
  // UTF-8.
  std::map<std::string, std::string> function;
  // Settings that matter in training only and may change when a run resumes.
  std::map<std::string, std::string> training;
  // True: these settings describe the modules below, too, so ConfigOf skips those.
  bool complete = false;
};

// Equal values give equal texts; unequal values give unequal texts.
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

// The settings of every Configured module in the tree, each prefixed with the module's full name.
ConfigTexts ConfigOf(Module& model);

}  // namespace apogee::nn

#endif  // APOGEE_NN_CONFIGURED_H_
