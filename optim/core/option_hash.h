// SPDX-License-Identifier: Apache-2.0

// OptionHash: hashes option values by their bits. Ranks compare such hashes in every step to detect
// options that differ (options_agreement.h).
//
//   OptionHash hash;
//   hash.AddFields(options(group));       // all of its Fields(), in their order
//   hash.value();
#ifndef APOGEE_OPTIM_CORE_OPTION_HASH_H_
#define APOGEE_OPTIM_CORE_OPTION_HASH_H_

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "apogee/optim/options.h"

namespace apogee::optim {

class OptionHash {
 public:
  // The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), chained.
  void Add(uint64_t bits) {
    uint64_t z = (value_ ^ bits) + 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    value_ = z ^ (z >> 31);
  }
  void Add(int64_t value) { Add(static_cast<uint64_t>(value)); }
  void Add(int value) { Add(int64_t{value}); }
  void Add(bool value) { Add(uint64_t{value}); }
  void Add(double value) { Add(std::bit_cast<uint64_t>(value)); }
  void Add(const std::string& text) {
    Add(uint64_t{text.size()});
    for (const char c : text) Add(uint64_t{static_cast<unsigned char>(c)});
  }
  template <typename T, size_t n>
  void Add(const std::array<T, n>& values) {
    for (const T& value : values) Add(value);
  }
  template <typename T>
  void Add(const std::vector<T>& values) {
    Add(uint64_t{values.size()});
    for (const T& value : values) Add(value);
  }
  template <typename Options>
  void AddFields(const Options& options) {
    for (const OptionField<Options>& field : Options::Fields()) {
      std::visit(
          [&]<typename Member>(const Member& member) {
            if constexpr (std::is_member_object_pointer_v<Member>) {
              Add(options.*member);
            } else {
              Add(member.format(options));
            }
          },
          field.member);
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_OPTION_HASH_H_
