// SPDX-License-Identifier: Apache-2.0

// Random damage to the bytes of a file: a bit flips, two blocks are swapped, the end is missing,
// bytes are added, a block reads as zeros.
//
//   DamageDice dice(seed);
//   const Damage damage = dice.Apply(bytes);     // always a change
//   ... << damage.what;                          // "bit 3 of byte 17 flipped"
#ifndef APOGEE_TESTS_SUPPORT_FILES_DAMAGE_H_
#define APOGEE_TESTS_SUPPORT_FILES_DAMAGE_H_

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>

namespace apogee::testing {

struct Damage {
  std::string kind;
  std::string what;
  bool keeps_size = true;
  int64_t first_byte = 0;  // the first byte that differs
};

// The number in the environment variable APOGEE_CORRUPTIONS, or `otherwise`.
inline int DamageCount(int otherwise) {
  const char* text = std::getenv("APOGEE_CORRUPTIONS");
  return text == nullptr ? otherwise : std::atoi(text);
}

class DamageDice {
 public:
  explicit DamageDice(uint64_t seed) : random_(seed) {}

  Damage Apply(std::string& bytes) {
    const std::string before = bytes;
    while (true) {
      Damage damage = Try(bytes);
      if (bytes == before) continue;
      const auto shorter = std::min(bytes.size(), before.size());
      size_t first = 0;
      while (first < shorter && bytes[first] == before[first]) ++first;
      damage.first_byte = static_cast<int64_t>(first);
      damage.keeps_size = bytes.size() == before.size();
      return damage;
    }
  }

 private:
  size_t Below(size_t limit) { return random_() % limit; }

  Damage Try(std::string& bytes) {
    const size_t at = Below(bytes.size());
    const size_t length = 1 + Below(std::min<size_t>(bytes.size() - at, 5000));
    const std::string block = std::to_string(length) + " bytes at " + std::to_string(at);
    switch (Below(5)) {
      case 0: {
        const size_t bit = Below(8);
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
        return {"flip", "bit " + std::to_string(bit) + " of byte " + std::to_string(at)};
      }
      case 1: {
        const size_t other = Below(bytes.size() - length + 1);
        if (other + length > at && at + length > other) return {};  // they overlap: try again
        std::swap_ranges(bytes.begin() + static_cast<int64_t>(at),
                         bytes.begin() + static_cast<int64_t>(at + length),
                         bytes.begin() + static_cast<int64_t>(other));
        return {"swap", block + " and " + std::to_string(other) + " changed places"};
      }
      case 2:
        bytes.resize(at);
        return {"cut", "cut at byte " + std::to_string(at)};
      case 3:
        for (size_t i = 0; i < length; ++i) bytes += static_cast<char>(random_());
        return {"longer", std::to_string(length) + " bytes more"};
      default:
        std::fill_n(bytes.begin() + static_cast<int64_t>(at), length, '\0');
        return {"zeros", block + " are zeros"};
    }
  }

  std::mt19937_64 random_;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_DAMAGE_H_
