// SPDX-License-Identifier: Apache-2.0

// A base in 4 or 8 bits below adapters (Dettmers et al., "QLoRA", 2023). nn::AddLora calls this for
// LoraOptions::quantize.
//
//   nn::AddLora(model, {.rank = 8, .quantize = nn::QuantizeOptions{}});     // nf4
//   nn::AddLora(model, {.rank = 8, .quantize = {{.kind = BlockCodeKind::kInt8}}});
//
// A weight is cut into blocks of 64 elements, row after row. A block has a scale, its largest
// magnitude, and codes: 16 values of which most are near zero (nf4, the numbers of bitsandbytes),
// or steps of scale / 127 (int8). A weight takes 0.52 or 1.02 bytes per element. Products decode
// it.
#ifndef APOGEE_NN_QUANTIZED_QUANTIZE_H_
#define APOGEE_NN_QUANTIZED_QUANTIZE_H_

#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/tensor/ops/kinds.h"

namespace apogee::nn {

class Module;

struct QuantizeOptions {
  BlockCodeKind kind = BlockCodeKind::kNf4;
  // "Double quantisation": scales are codes of 8 bits, too, by blocks of 256. False: they are f32.
  bool nested = true;
  // Ends of the names of layers that stay as they are.
  std::vector<std::string> skip = {};
};

// "nf4", "int8".
const char* Name(BlockCodeKind kind);
// Of these words; of "none" nothing. InvalidArgument for another word.
absl::StatusOr<std::optional<QuantizeOptions>> ParseQuantize(const std::string& text);

// Freezes the weights of all nn::Linear layers but the output's, and holds them so from now on.
// Lazy values stay lazy. `keep`: modules that stay as they are, with all below them. Call it before
// the optimizer is made. Throws Error, with the model unchanged, for a name in `skip` that matches
// no layer, for values that are not finite, and if there is no layer to quantize.
void QuantizeLinears(Module& model, const QuantizeOptions& options,
                     const std::vector<Module*>& keep = {});

}  // namespace apogee::nn

#endif  // APOGEE_NN_QUANTIZED_QUANTIZE_H_
