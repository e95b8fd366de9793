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
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apogee/layout/layout.h"
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

// The special tokens of a model's config.json, for programs that generate text:
// config.token_ids["pad_token_id"] = {50256}.
// By field name: "bos_token_id", "eos_token_id" or "pad_token_id". An empty list is written as
// null, several ids as a list. A field that is not in the map is not written; the transformers
// library then uses its own default.
using TokenIds = std::map<std::string, std::vector<int64_t>>;

// For a model that was not read from a file: writes null, since the library's default ids belong to
// its own vocabulary.
inline TokenIds NoTokenIds() { return {{"bos_token_id", {}}, {"eos_token_id", {}}}; }

// A model's parameters and buffers as a table of text. Works before Initialize, with "-" for the
// dtype, and makes no lazy value. The last line counts parameters only.
//
//   std::cout << nn::Summary(model, [&](const Parameter& p) { return plugin.LayoutOf(p); });
//
//   parameter      shape       dtype   count  this rank
//   fc1.weight     [256, 64]   f32    16,384  8,192 of 16,384
//   fc1.bias       [256]       f32       256  whole, 2 ranks
//   2 parameters, 16,640 elements, 65.0 KiB; this rank: 8,448 elements

// The layout of this rank's part of a parameter.
using LayoutFunction = std::function<Layout(const Parameter& parameter)>;

// Without `layout_of` the table has no column for this rank's part.
std::string Summary(const Module& model, const LayoutFunction& layout_of = nullptr);

}  // namespace apogee::nn

#endif  // APOGEE_NN_CONFIGURED_H_
