// SPDX-License-Identifier: Apache-2.0

#include "tokens.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>

namespace outside {
namespace {

// Of targets that do not count.
constexpr int64_t kIgnored = -100;

int64_t LengthOf(int64_t sample, int64_t block) {
  return sample / 4 % 4 == 1 ? 0 : sample * 5 % (block + 1);
}

}  // namespace

void WriteTokens(const std::string& path, int64_t count, int64_t vocab) {
  std::mt19937 random(1);
  std::ofstream file(path, std::ios::binary);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t drawn = static_cast<int64_t>(random() % 7);
    const auto token = static_cast<uint16_t>((drawn + i / 3) % vocab);
    file.write(reinterpret_cast<const char*>(&token), sizeof(token));
  }
  APOGEE_CHECK(file.flush(), path, ": cannot be written");
}

MmapTokens::MmapTokens(const std::string& path, const Options& options) : options_(options) {
  const int file = open(path.c_str(), O_RDONLY);
  APOGEE_CHECK(file >= 0, path, ": ", std::strerror(errno));
  struct stat status {};
  const bool has_size = fstat(file, &status) == 0;
  bytes_ = static_cast<size_t>(status.st_size);
  void* mapped = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  APOGEE_CHECK(has_size && mapped != MAP_FAILED, path, ": ", std::strerror(errno));
  tokens_ = static_cast<const uint16_t*>(mapped);
  count_ = static_cast<int64_t>(bytes_ / sizeof(uint16_t));
  APOGEE_CHECK(num_samples() > 0, path, ": ", count_, " tokens hold no sample");
}

MmapTokens::~MmapTokens() { munmap(const_cast<uint16_t*>(tokens_), bytes_); }

void MmapTokens::Fill(int64_t index, int64_t* inputs, int64_t* targets) const {
  const uint16_t* at = tokens_ + index * options_.block;
  const int64_t length = options_.padded ? LengthOf(index, options_.block) : options_.block;
  for (int64_t t = 0; t < options_.block; ++t) {
    inputs[t] = at[t];
    targets[t] = t < length ? at[t + 1] : kIgnored;
  }
}

}  // namespace outside
