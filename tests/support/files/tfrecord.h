// SPDX-License-Identifier: Apache-2.0

// An independent reader of TensorBoard event files for tests. It shares no code with the writer
// (its checksum works bit by bit), checks every CRC, and rejects unknown fields.
#ifndef APOGEE_TESTS_SUPPORT_FILES_TFRECORD_H_
#define APOGEE_TESTS_SUPPORT_FILES_TFRECORD_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace apogee::testing {

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  int64_t session_status = 0;
  std::map<std::string, float> scalars;
};

class ProtoReader {
 public:
  explicit ProtoReader(std::string bytes) : bytes_(std::move(bytes)) {}

  bool AtEnd() const { return position_ == bytes_.size(); }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(Take(1)[0]);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    throw std::runtime_error("varint too long");
  }
  std::string Bytes() { return Take(Varint()); }
  template <typename T>
  T Fixed() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string Take(size_t count) {
    if (count > bytes_.size() - position_) throw std::runtime_error("message cut short");
    position_ += count;
    return bytes_.substr(position_ - count, count);
  }

 private:
  std::string bytes_;
  size_t position_ = 0;
};

inline uint32_t UnmaskedCrc(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return rotated >> 17 | rotated << 15;
}

inline uint32_t BitwiseCrc32c(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool set = ((crc ^ (static_cast<unsigned char>(c) >> bit)) & 1u) != 0;
      crc = crc >> 1 ^ (set ? 0x82f63b78u : 0u);
    }
  }
  return ~crc;
}

inline void ParseValue(ProtoReader value, Event& event) {
  std::string tag;
  float simple = 0;
  while (!value.AtEnd()) {
    switch (value.Varint()) {
      case 1 << 3 | 2:
        tag = value.Bytes();
        break;
      case 2 << 3 | 5:
        simple = value.Fixed<float>();
        break;
      default:
        throw std::runtime_error("unknown field in Summary.Value");
    }
  }
  event.scalars[tag] = simple;
}

inline Event ParseEvent(const std::string& bytes) {
  Event event;
  ProtoReader reader(bytes);
  while (!reader.AtEnd()) {
    switch (reader.Varint()) {
      case 1 << 3 | 1:
        event.wall_time = reader.Fixed<double>();
        break;
      case 2 << 3 | 0:
        event.step = static_cast<int64_t>(reader.Varint());
        break;
      case 3 << 3 | 2:
        event.file_version = reader.Bytes();
        break;
      case 5 << 3 | 2: {
        ProtoReader summary(reader.Bytes());
        while (!summary.AtEnd()) {
          if (summary.Varint() != (1 << 3 | 2))
            throw std::runtime_error("unknown field in Summary");
          ParseValue(ProtoReader(summary.Bytes()), event);
        }
        break;
      }
      case 7 << 3 | 2: {
        ProtoReader log(reader.Bytes());
        if (log.Varint() != (1 << 3 | 0)) throw std::runtime_error("unknown field in SessionLog");
        event.session_status = static_cast<int64_t>(log.Varint());
        break;
      }
      default:
        throw std::runtime_error("unknown field in Event");
    }
  }
  return event;
}

// Throws for a wrong checksum, a torn record or an unknown field.
inline std::vector<Event> ReadEvents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  ProtoReader reader({std::istreambuf_iterator<char>(file), {}});
  std::vector<Event> events;
  while (!reader.AtEnd()) {
    const std::string length = reader.Take(8);
    if (UnmaskedCrc(reader.Fixed<uint32_t>()) != BitwiseCrc32c(length)) {
      throw std::runtime_error("wrong checksum of a length");
    }
    const std::string data = reader.Take(ProtoReader(length).Fixed<uint64_t>());
    if (UnmaskedCrc(reader.Fixed<uint32_t>()) != BitwiseCrc32c(data)) {
      throw std::runtime_error("wrong checksum of a record");
    }
    events.push_back(ParseEvent(data));
  }
  return events;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_TFRECORD_H_
