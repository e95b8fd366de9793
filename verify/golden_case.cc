// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/golden_case.h"

#include <fstream>

namespace apogee::verify {

absl::StatusOr<GoldenCase> GoldenCase::Open(const std::string& path, std::string label,
                                            ContextPtr context, const std::string& format) {
  APOGEE_ASSIGN_OR_RETURN(checkpoint::SafetensorsReader file,
                          checkpoint::SafetensorsReader::Open(path));
  GoldenCase golden(std::move(file), std::move(label), std::move(context));
  if (!golden.text("format").starts_with(format)) {
    return InvalidArgument(path, ": not a recorded case: its metadata's \"format\" is \"",
                           golden.text("format"), "\", which is not ", format, "...");
  }
  return golden;
}

std::string GoldenCase::text(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  return found == file_.metadata().end() ? "" : found->second;
}

Json GoldenCase::json(const std::string& key) const {
  const std::string value = text(key);
  if (value.empty()) return nullptr;
  Json parsed = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  APOGEE_CHECK(!parsed.is_discarded(), file_.path(), ": metadata \"", key,
               "\" is not JSON: ", value.substr(0, 80));
  return parsed;
}

Json GoldenCase::required(const std::string& key) const {
  Json value = json(key);
  APOGEE_CHECK(!value.is_null(), file_.path(), ": the metadata has no \"", key, "\"");
  return value;
}

std::vector<std::pair<std::string, Shape>> GoldenCase::Params() const {
  std::vector<std::pair<std::string, Shape>> params;
  for (const Json& item : required("params")) {
    const auto dims = item.at(1).get<std::vector<int64_t>>();
    params.emplace_back(item.at(0).get<std::string>(), Shape(dims));
  }
  return params;
}

Tensor GoldenCase::Load(const std::string& entry) const {
  return ValueOrThrow(file_.Load(entry, context_));
}

Tensor GoldenCase::Load(const std::string& entry, DType dtype) const {
  const Tensor tensor = Load(entry);
  return tensor.dtype() == dtype ? tensor : tensor.To(dtype);
}

std::vector<double> GoldenCase::Values(const std::string& entry) const {
  return Load(entry).ToVector<double>();
}

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  APOGEE_CHECK(file.good(), path, " cannot be read");
  Json parsed = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  APOGEE_CHECK(!parsed.is_discarded(), path, " is not JSON");
  return parsed;
}

}  // namespace apogee::verify
