// SPDX-License-Identifier: Apache-2.0

// Catalog: the optimizers, plugins and models that cells name: the library's, and your own.
//
//   matrix::Catalog catalog;
//   catalog.optimizers.Add<AdaMax>("adamax");
//   catalog.workloads.Add("own_model", std::make_shared<OwnWorkload>());
//   catalog.plugins.push_back({.name = "late_mean", .worlds = {2, 3}, .precisions = {"f64"},
//                              .make = MakeLateMean, .workloads = {"fed", "own_model"}});
//   RunMatrix({.only = "*/late_mean/*", .catalog = &catalog}, std::cout);
#ifndef APOGEE_MATRIX_CATALOG_H_
#define APOGEE_MATRIX_CATALOG_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/core/text/name_table.h"
#include "apogee/matrix/plugins.h"
#include "apogee/matrix/workload.h"
#include "apogee/optim/registry.h"

namespace apogee::matrix {

struct Catalog {
  // Has what the library has.
  Catalog();

  // These throw Error for an unknown name.
  const PluginVariant& FindPlugin(const std::string& name) const;
  const Workload& FindWorkload(const std::string& name) const;

  optim::OptimizerRegistry optimizers;
  // In the order of the cells. A plugin runs with the workloads that it names.
  std::vector<PluginVariant> plugins;
  // The library's:
  //
  //   fed                             FedGradients
  //   gpt2, llama                     TinyWorkload
  //   gpt2_tied, gpt2_untied,         LmWorkload
  //   llama_tied, llama_untied
  //   gpt2_long, llama_long (tied)    LmWorkload with tokens for 4 ranks in two pieces each
  //   gpt2_deep (tied),               the same, with layers for two chunks of four pipeline stages
  //   llama_deep (untied)
  //   gpt2_chunked (tied),            the same, with DecoderConfig::head_chunks and recomputed
  //   llama_chunked (untied)          activations in boosted runs
  //   cnn, encoder, gru               LayerWorkload
  //   hf_llama, hf_gemma2, …          FamilyWorkload
  NameTable<std::shared_ptr<const Workload>> workloads{"workload"};
};

// The library's alone.
const Catalog& LibraryCatalog();

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_CATALOG_H_
