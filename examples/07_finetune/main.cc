// SPDX-License-Identifier: Apache-2.0

// Fine-tunes a language model from a Hugging Face folder, and makes a folder that the transformers
// library opens. Copy this program for a model that is not trained from scratch: LoadPretrained
// takes the place of the model's constructor, and SaveTrained is at the end.
//
//   07_finetune --model llama --data train.jsonl --out out       # prompts and completions
//   07_finetune --model llama --data book.txt --out out --block 512
//   07_finetune --model llama --data train.jsonl --out out --ranks 4 --plugin zero2 --pack
//   07_finetune --model llama --data train.jsonl --out out --ranks 2 --plugin hybrid --tp-size 2
//   07_finetune --model llama --data train.jsonl --out out --lora-rank 8    # an adapter, for PEFT
//   07_finetune --model llama --data train.jsonl --out out --lora-rank 8 --quantize nf4
#include <memory>
#include <string>
#include <vector>

#include "apogee/apogee.h"
#include "apogee/driver/model_folder.h"
#include "apogee/driver/model_folder/lora_flags.h"
#include "apogee/driver/plugin_flags.h"
#include "apogee/driver/text_run.h"

using namespace apogee;

namespace {

struct Flags : driver::RunFlags {
  driver::PluginFlags plugin;
  driver::LoraFlags lora;
  std::string model;                 // the folder
  std::vector<std::string> prompts;  // empty: two of the validation part
};

void Declare(driver::CommandLine& line, Flags& flags) {
  flags.fine_tunes = true;
  flags.epochs = 1;
  flags.block = 256;
  flags.lr = 2e-5;
  flags.log_every = 10;
  flags.sample = 40;
  line.Group("Model");
  line.AddText("--model", flags.model,
               "Folder of a Hugging Face model: config.json, weights, tokenizer; OUT/model becomes "
               "such a folder");
  flags.Declare(line, {.prompt = false, .epochs = true});
  line.AddTexts("--prompt", flags.prompts,
                "Texts to continue before and after training; default: two of the validation part");
  flags.lora.Declare(line);
  flags.plugin.Declare(line);
}

void Settle(const driver::CommandLine& line, Flags& flags) {
  if (flags.model.empty()) Throw("--model is needed: the folder of a Hugging Face model");
  if (flags.out.empty()) Throw("--out is needed: the trained model goes to OUT/model");
  flags.lora.Settle(line);
  flags.plugin.Settle(line, flags);
}

std::string TrainedFolder(const Flags& flags) {
  return flags.out + (flags.lora.is_on() ? "/adapter" : "/model");
}

driver::Corpus Load(Flags& flags) {
  // A run that resumes may have no steps left. Then TextRun says so.
  if (flags.checkpoints.resume.empty()) driver::CheckNoFolder(TrainedFolder(flags));
  return driver::LoadDataFor(flags.model, flags);
}

// Every rank runs this; returns the program's exit code.
int Train(const driver::Rank& rank, const Flags& flags) {
  const std::unique_ptr<Plugin> plugin = flags.plugin.Make(rank.world, flags);

  // The ordinary setup, with weights from files. They are read when the plugin asks for them, so a
  // rank that keeps a shard needs no room for all.
  std::vector<std::string> notices;
  const auto notice = [&](const std::string& text) { notices.push_back("note: " + text); };
  const bool lazy = !flags.lora.needs_values();
  const nn::HfModel hf = ValueOrThrow(
      LoadPretrained(flags.model, rank.world.context(), {.lazy = lazy, .notice = notice}));
  const int64_t num_parameters = hf.module->num_parameters();
  Booster booster(*plugin);
  flags.lora.Enable(booster, *hf.module);
  const auto optimizer = flags.MakeOptimizer(hf.module->Parameters());
  optim::LrScheduler scheduler(*optimizer, flags.MakeSchedule());

  driver::TextRun run(rank, flags, booster, *plugin, flags.plugin.Settings({}));
  Boosted boosted = booster.boost(*hf.module, *optimizer,
                                  {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
  if (!run.Start(boosted, scheduler,
                 {hf.model_type, num_parameters, flags.plugin.Layout(rank.world)})) {
    return 0;
  }
  for (const std::string& text : notices) run.Note(text);
  if (rank.world.rank() == 0) driver::CheckNoFolder(TrainedFolder(flags));
  const std::vector<std::string>& prompts =
      flags.prompts.empty() ? rank.corpus.prompts : flags.prompts;
  if (run.step() == 0) {
    run.Validate();
    run.WriteSamples(prompts);
  }

  const Accumulation accumulation = booster.accumulate(flags.accumulate);
  for (const data::Window& window : run.samples().Windows(flags.accumulate)) {
    // Every target of the step weighs the same, however prompts and padding are spread over
    // micro-batches and ranks.
    const auto open = booster.accumulation_window(window.num_targets);
    for (const data::Batch& batch : window.batches) {
      // Forward and backward under any plugin; the batch has the starts of packed samples.
      booster.execute_pipeline(batch, boosted.model, boosted.criterion, &boosted.optimizer);
    }
    run.BeforeStep(accumulation.loss());
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    scheduler.step();
    if (run.AfterStep()) return run.exit_code();
  }
  // Before the validation, with which the run is finished.
  if (flags.lora.is_on()) {
    OkOrThrow(booster.save_adapter(TrainedFolder(flags), {.base_model = flags.model}));
  } else {
    driver::SaveTrained(booster, rank.world, hf.config_json, flags.model, TrainedFolder(flags));
  }
  run.Validate();
  run.WriteSamples(prompts);
  run.ReportMemory();
  run.Note("saved " + TrainedFolder(flags));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  return driver::Run(argc, argv, flags,
                     {.name = "07_finetune",
                      .about = "Fine-tunes a language model from a Hugging Face folder.",
                      .declare = [&](driver::CommandLine& line) { Declare(line, flags); },
                      .settle = [&](const driver::CommandLine& line) { Settle(line, flags); },
                      .load = [&] { return Load(flags); },
                      .train = [&](const driver::Rank& rank) { return Train(rank, flags); }});
}
