// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/model_folder/lora_flags.h"

#include "apogee/core/status.h"

namespace apogee::driver {

void LoraFlags::Declare(CommandLine& line) {
  line.Group("Adapter");
  line.AddCount("--lora-rank", rank,
                "Trains an adapter of this rank in place of the model (LoRA); OUT/adapter opens in "
                "PEFT. 0: trains the model",
                /*low=*/0);
  line.AddNumber("--lora-alpha", alpha,
                 "The adapter's part is scaled by alpha / rank; default: twice the rank");
  line.HideDefault("--lora-alpha");
  line.AddTexts(
      "--lora-target", targets,
      "Ends of the names of layers, such as q_proj v_proj; default: all linear layers but "
      "the output");
  line.AddNumber("--lora-dropout", dropout, "Dropout of the adapter's input", 0, 1);
  line.AddSwitch("--dora", dora, "Trains the norms of rows, too (DoRA)");
  line.AddText("--quantize", quantize,
               "Holds the frozen linear layers in 4 bits (nf4) or 8 (int8), below an adapter",
               [](const std::string& text) { return nn::ParseQuantize(text).status(); });
  line.AddText("--lora-from", from, "Folder of an adapter to go on with, of this program or PEFT");
}

void LoraFlags::Settle(const CommandLine& line) {
  const bool options = line.given("--lora-alpha") || line.given("--lora-target") ||
                       line.given("--lora-dropout") || dora;
  if (!from.empty() && (options || rank > 0)) {
    Throw("--lora-from: the folder says the adapter's rank and options; give no other --lora flag");
  }
  if (quantize != "none" && !is_on()) {
    Throw("--quantize: a model in few bits is not trained itself; give --lora-rank, too");
  }
  if (options && rank == 0) Throw("the options of an adapter need --lora-rank");
  if (alpha == 0) alpha = 2 * static_cast<double>(rank);
  if (targets.empty()) targets = {"all-linear"};
}

void LoraFlags::Enable(Booster& booster, nn::Module& model) const {
  const std::optional<nn::QuantizeOptions> base = ValueOrThrow(nn::ParseQuantize(quantize));
  if (!from.empty()) {
    OkOrThrow(booster.enable_lora_from(model, from, "default", checkpoint::RealFileSystem(), base));
  } else if (rank > 0) {
    booster.enable_lora(model, {.rank = rank,
                                .alpha = alpha,
                                .targets = targets,
                                .dropout = dropout,
                                .use_dora = dora,
                                .quantize = base});
  }
}

}  // namespace apogee::driver
