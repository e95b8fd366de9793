// SPDX-License-Identifier: Apache-2.0

// Calls of models with packed documents.
#include <memory>
#include <string>

#include "apogee/autograd/documents.h"
#include "apogee/nn/module.h"

namespace apogee::nn {

void Module::CheckTakesDocuments() {
  APOGEE_CHECK(takes_documents(), Called(),
               " does not say that it keeps packed documents apart: its starts would be ignored; "
               "leave attention and positions to nn::AttentionCore and override takes_documents");
  for (const Module* module : Modules()) {
    APOGEE_CHECK(!module->mixes_tokens(), Called(), ": ", module->Called(),
                 " mixes tokens of different documents; give each document a sequence of its own, "
                 "without starts");
  }
}

NamedTensors Module::RunWithDocuments(const NamedTensors& inputs) {
  const auto tokens = inputs.find("tokens"), starts = inputs.find("starts");
  const bool known =
      tokens != inputs.end() && inputs.size() == (starts == inputs.end() ? size_t{1} : size_t{2});
  std::string names;
  for (const auto& [name, input] : inputs) names += (names.empty() ? "" : ", ") + name;
  APOGEE_CHECK(known, Called(),
               " takes \"tokens\" and, if documents are packed, "
               "\"starts\"; got ",
               names);
  if (starts == inputs.end()) return {{"logits", (*this)(tokens->second)}};
  CheckTakesDocuments();
  const auto documents = std::make_shared<autograd::Documents>(starts->second);
  const Shape& shape = tokens->second.shape();
  APOGEE_CHECK(shape.rank() >= 2, Called(), ": tokens ", shape, " are not [B, T]");
  documents->CheckFit("model", shape[0], shape[1]);
  const autograd::DocumentsGuard guard(documents);
  return {{"logits", (*this)(tokens->second)}};
}

}  // namespace apogee::nn
