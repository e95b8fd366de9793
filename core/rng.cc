#include "apogee/core/rng.h"

namespace apogee {

PhiloxKey MakeKey(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  // The hash goes through Philox with the seed as key, so that nearby seeds and names are
  // unrelated.
  const PhiloxKey seed_key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const auto words = Philox(seed_key, hash);
  return {words[0], words[1]};
}

PhiloxKey SubKey(PhiloxKey key, uint64_t stream) {
  const auto words = Philox(key, stream, /*high=*/0x73747265616d0000u);
  return {words[0], words[1]};
}

}  // namespace apogee
