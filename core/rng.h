// SPDX-License-Identifier: Apache-2.0

// Counter-based random numbers (Philox 4x32-10; Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A number is a pure function of (key, counter). It does not depend on the
// number of threads, on the layout, or on the rank that draws it.
//
//   PhiloxKey key = MakeKey(seed, "transformer.wte.weight");
//   std::array<uint32_t, 4> bits = Philox(key, /*counter=*/element / 4);
//   float u = ToUniform(bits[element % 4]);                 // in (0, 1]
#ifndef APOGEE_CORE_RNG_H_
#define APOGEE_CORE_RNG_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "apogee/core/sample_place.h"

namespace apogee {

struct PhiloxKey {
  uint32_t a = 0;
  uint32_t b = 0;
};

// The stream of `name` under `seed`: different names give independent streams.
PhiloxKey MakeKey(uint64_t seed, const std::string& name);
// Stream number `stream` of a key: for instance one per call of a dropout layer.
PhiloxKey SubKey(PhiloxKey key, uint64_t stream);

// Four independent 32-bit words. `high` is the upper half of the 128-bit counter. constexpr,
// because GPU kernels call it too.
constexpr std::array<uint32_t, 4> Philox(PhiloxKey key, uint64_t counter, uint64_t high = 0) {
  uint32_t a = static_cast<uint32_t>(counter), b = static_cast<uint32_t>(counter >> 32);
  uint32_t c = static_cast<uint32_t>(high), d = static_cast<uint32_t>(high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * a;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c;
    a = static_cast<uint32_t>(p1 >> 32) ^ b ^ key.a;
    b = static_cast<uint32_t>(p1);
    c = static_cast<uint32_t>(p0 >> 32) ^ d ^ key.b;
    d = static_cast<uint32_t>(p0);
    key.a += 0x9E3779B9u;
    key.b += 0xBB67AE85u;
  }
  return {a, b, c, d};
}

// In (0, 1], 24 bits: never 0, so that log() is finite.
constexpr float ToUniform(uint32_t bits) {
  return (static_cast<float>(bits >> 8) + 1.0f) * 0x1p-24f;
}

// A cursor over streams. Checkpoints save this state, and recomputation replays it. Each call of a
// random op takes the next stream. Two generators with equal state draw equal numbers.
//
// `first_sample` is the index, within the global batch, of this rank's first sample. A random op
// numbers its elements from there, so splitting a batch over ranks does not change its numbers.
//
// A batch that knows its place in a window (BeginBatch) draws the numbers that its samples would
// draw if the whole window were one batch. All micro-batches of the window use the same streams,
// and elements are numbered by the sample's place in the window. A second forward of the same batch
// takes further streams. Between windows the generator's state is only its next stream.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : key_(MakeKey(seed, "generator")) {}

  PhiloxKey Next() { return SubKey(key_, next_stream_++); }
  PhiloxKey key() const { return key_; }
  void set_key(PhiloxKey key) { key_ = key; }
  uint64_t next_stream() const { return next_stream_; }
  void set_next_stream(uint64_t stream) { next_stream_ = stream; }
  int64_t first_sample() const { return first_sample_; }
  void set_first_sample(int64_t sample) { first_sample_ = sample; }

  // Call before the forward of each batch in training mode. Null if the place is not known: samples
  // are then numbered from first_sample(), and streams continue.
  void BeginBatch(const SamplePlace* place);
  // Forgets all windows; the next batch takes streams from `stream` on. For loading a state.
  void Restart(uint64_t stream);
  // The argument for Restart that continues from here. Valid between windows.
  uint64_t state() const { return std::max(unused_stream_, next_stream_); }

 private:
  // The current window of one stream of samples.
  struct Window {
    SamplePlace place;
    uint64_t first_stream = 0;
    uint64_t next_stream = 0;  // after those of the batch at `place`
  };

  PhiloxKey key_;
  uint64_t next_stream_ = 0;
  int64_t first_sample_ = 0;
  bool placed_ = false;          // the last batch knew its place
  uint64_t unused_stream_ = 0;   // after all streams used so far
  std::vector<Window> windows_;  // one per stream of samples; the last batch's at the end
};

}  // namespace apogee

#endif  // APOGEE_CORE_RNG_H_
