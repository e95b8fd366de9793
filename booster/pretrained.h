// SPDX-License-Identifier: Apache-2.0

// LoadPretrained: a model with its weights from a Hugging Face folder (config.json and safetensors
// files), or a folder's weights into a model of your own.
//
//   APOGEE_ASSIGN_OR_RETURN(nn::HfModel gpt, LoadPretrained("hub/gpt2", world.context()));
//   Tensor logits = (*gpt.module)(tokens);                         // train it, boost it ...
//   OkOrThrow(booster.save_model("out", {.config_json = gpt.config_json}));
//
//   MyModel model;                                         // holds the GPT-2 as its child "gpt"
//   model.Initialize(world.context());
//   auto report = LoadPretrained(model, "hub/gpt2");       // report->model_prefix is "gpt."
//
// Call it before boost. After boost the second form is booster.load_model(folder), which also fills
// the optimizer's master weights. Not collective: every rank reads the files.
//
// The class is found by the config's "model_type" (nn::HfModelTypes). Weights are converted to the
// model's dtype. Names in files differ from those of models in ways that are known
// (checkpoint/hf/hf_names.h).
#ifndef APOGEE_BOOSTER_PRETRAINED_H_
#define APOGEE_BOOSTER_PRETRAINED_H_

#include <memory>
#include <string>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/load_report.h"
#include "apogee/nn/models/hf_model.h"

namespace apogee {

struct PretrainedOptions {
  // Of the parameters that the first form makes.
  DType dtype = DType::kF32;
  // Of the first form: each value is read from the files when it is first needed
  // (Parameter::is_lazy). A boost with a plugin that shards parameters then needs no memory for the
  // whole model. The files stay open until then; a value that cannot be read throws Error.
  bool lazy = false;
  // false: missing tensors keep the model's first values, and unexpected ones are left out. The
  // second form's report has their names; the first form gives a notice.
  bool strict = true;
  // model_prefix begins the model's names but not the names in the files, as "gpt." above; only for
  // the second form. Names without it are not in the files, and keep their values. file_prefix is
  // the reverse. If neither is given, a prefix that makes all tensors of the files fit is found by
  // itself.
  std::string model_prefix = {}, file_prefix = {};
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
  // Gets sentences about settings that have no effect, and the notice of `strict`; null: stderr.
  nn::HfNotice notice = nullptr;
};

// A new model. Errors:
//
//   NotFound         no such folder, no config.json, no weights, or some of their files are missing
//   DataLoss         a file is damaged, is cut short, or is a Git LFS pointer
//   InvalidArgument  the config cannot be used (nn::MakeHfModel), or the weights do not fit it:
//                    lists missing, unexpected and misshapen tensors, each once
//
// Throws Error for model_prefix.
absl::StatusOr<nn::HfModel> LoadPretrained(const std::string& dir, const ContextPtr& context,
                                           const PretrainedOptions& options = {});

// The weights into a model that has values. Those that are lazy stay so, and are read from the
// files when they are needed. config.json is not read. Errors as above; nothing has changed then,
// except after a read error of the disk, which comes later. Throws Error for a model without
// values, for one that has been boosted, and for options of the first form.
absl::StatusOr<checkpoint::LoadReport> LoadPretrained(nn::Module& model, const std::string& dir,
                                                      const PretrainedOptions& options = {});

}  // namespace apogee

#endif  // APOGEE_BOOSTER_PRETRAINED_H_
