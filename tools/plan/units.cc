// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/plan/units.h"

#include <map>

namespace apogee::tools {
namespace {

using Units = std::map<std::string, double>;

constexpr double kKibi = 1024;

// {"k" + unit, ...} up to peta.
void AddDecimal(Units& units, const std::string& unit, double size) {
  double factor = size;
  for (const char* const prefix : {"", "K", "M", "G", "T", "P"}) {
    units[prefix + unit] = factor;
    factor *= 1e3;
  }
}

void AddBinary(Units& units, const std::string& unit) {
  double factor = kKibi;
  for (const char* const prefix : {"Ki", "Mi", "Gi", "Ti", "Pi"}) {
    units[prefix + unit] = factor;
    factor *= kKibi;
  }
}

Units UnitsOf(Quantity quantity) {
  Units units;
  switch (quantity) {
    case Quantity::kBytes:
      units[""] = 1;
      AddDecimal(units, "B", 1);
      AddBinary(units, "B");
      break;
    case Quantity::kRate:
      AddDecimal(units, "B/s", 1);
      AddBinary(units, "B/s");
      AddDecimal(units, "b/s", 1.0 / 8);
      AddDecimal(units, "bit/s", 1.0 / 8);
      break;
    case Quantity::kFlops:
      for (const char* const unit : {"", "FLOPS", "FLOP/s"}) AddDecimal(units, unit, 1);
      break;
    case Quantity::kTime:
      units = {{"ns", 1e-9},  {"us", 1e-6}, {"ms", 1e-3},   {"s", 1},        {"sec", 1},
               {"min", 60.0}, {"h", 3600},  {"day", 86400}, {"days", 86400}, {"d", 86400}};
      break;
  }
  return units;
}

const char* ExamplesOf(Quantity quantity) {
  switch (quantity) {
    case Quantity::kBytes:
      return "a size above 0 such as 80GiB, 24GB or 512MiB";
    case Quantity::kRate:
      return "a rate above 0 such as 400Gb/s (bits) or 50GB/s (bytes)";
    case Quantity::kFlops:
      return "a rate above 0 such as 400T or 1.2PFLOP/s";
    case Quantity::kTime:
      return "a time above 0 such as 5us, 30s, 20min, 7.9h or 300days";
  }
  return "?";
}

}  // namespace

absl::StatusOr<double> ParseQuantity(const std::string& flag, const std::string& text,
                                     Quantity quantity) {
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string number = text.substr(0, end);
  std::string unit = end == std::string::npos ? "" : text.substr(end);
  unit.erase(0, unit.find_first_not_of(' '));
  const Units units = UnitsOf(quantity);
  const auto found = units.find(unit);
  double value = 0;
  try {
    size_t used = 0;
    value = number.empty() ? 0 : std::stod(number, &used);
    if (used != number.size()) value = 0;
  } catch (const std::exception&) {
    value = 0;
  }
  if (found == units.end() || !(value > 0 && value * found->second <= 1e21)) {
    return InvalidArgument(flag, " is \"", text, "\"; it must be ", ExamplesOf(quantity));
  }
  return value * found->second;
}

}  // namespace apogee::tools
