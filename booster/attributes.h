// SPDX-License-Identifier: Apache-2.0

// Attributes: the texts of a checkpoint's attributes. Numbers read back with the same bits.
//
//   Attributes attributes;
//   attributes.Set("scaler.scale", 65536.0);
//   APOGEE_ASSIGN_OR_RETURN(double scale, attributes.GetDouble("scaler.scale"));
#ifndef APOGEE_BOOSTER_ATTRIBUTES_H_
#define APOGEE_BOOSTER_ATTRIBUTES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee {

class Attributes {
 public:
  Attributes() = default;
  // `path`: the checkpoint's, for messages.
  Attributes(std::map<std::string, std::string> values, std::string path)
      : values_(std::move(values)), path_(std::move(path)) {}

  const std::map<std::string, std::string>& values() const { return values_; }
  bool contains(const std::string& name) const { return values_.contains(name); }
  void Set(const std::string& name, const std::string& value) { values_[name] = value; }
  void Set(const std::string& name, int64_t value) { values_[name] = std::to_string(value); }
  void Set(const std::string& name, double value) { Set(name, std::vector<double>{value}); }
  void Set(const std::string& name, const std::vector<double>& values);

  // DataLoss if the attribute is missing or is not such a number.
  absl::StatusOr<std::string> Get(const std::string& name) const;
  absl::StatusOr<int64_t> GetInt(const std::string& name) const;
  absl::StatusOr<double> GetDouble(const std::string& name) const;
  absl::StatusOr<std::vector<double>> GetDoubles(const std::string& name) const;
  // All attributes whose names begin with `prefix`; the result's names lack it.
  std::map<std::string, std::string> Below(const std::string& prefix) const;

 private:
  std::map<std::string, std::string> values_;
  std::string path_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_ATTRIBUTES_H_
