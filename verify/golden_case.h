// SPDX-License-Identifier: Apache-2.0

// One recorded case: a safetensors file whose metadata has the settings.
//
//   auto c = GoldenCase::Open(path, "sgd/momentum", context, "colossal-golden/");
//   c->text("optimizer");  c->json("hyper")["lr"];  c->Values("param/wide/init");
#ifndef APOGEE_VERIFY_GOLDEN_CASE_H_
#define APOGEE_VERIFY_GOLDEN_CASE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apogee/checkpoint/format/safetensors_reader.h"

namespace apogee::verify {

using Json = nlohmann::json;

class GoldenCase {
 public:
  // `label` names the case in reports. Fails unless the metadata's "format" begins with `format`.
  static absl::StatusOr<GoldenCase> Open(const std::string& path, std::string label,
                                         ContextPtr context, const std::string& format);

  const std::string& label() const { return label_; }
  const ContextPtr& context() const { return context_; }
  const checkpoint::SafetensorsReader& file() const { return file_; }
  bool contains(const std::string& entry) const { return file_.contains(entry); }

  // A metadata string, "" if there is none.
  std::string text(const std::string& key) const;
  // A metadata value that holds JSON text; null if there is none. Throws Error if it is malformed.
  Json json(const std::string& key) const;
  // As json(), but throws Error if there is none.
  Json required(const std::string& key) const;
  // Parameter names and shapes in the optimizer's order.
  std::vector<std::pair<std::string, Shape>> Params() const;
  int64_t steps() const { return required("steps").get<int64_t>(); }

  // The entry in `dtype` (default: its own). Throws Error if it is missing or unreadable.
  Tensor Load(const std::string& entry) const;
  Tensor Load(const std::string& entry, DType dtype) const;
  std::vector<double> Values(const std::string& entry) const;

 private:
  GoldenCase(checkpoint::SafetensorsReader file, std::string label, ContextPtr context)
      : file_(std::move(file)), label_(std::move(label)), context_(std::move(context)) {}

  checkpoint::SafetensorsReader file_;
  std::string label_;
  ContextPtr context_;
};

// A file of JSON. Throws Error if it cannot be read.
Json ReadJson(const std::string& path);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_GOLDEN_CASE_H_
