// SPDX-License-Identifier: Apache-2.0

// Writes small safetensors files for tests, well-formed or not.
#ifndef APOGEE_TESTS_SUPPORT_FILES_SAFETENSORS_FILE_H_
#define APOGEE_TESTS_SUPPORT_FILES_SAFETENSORS_FILE_H_

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "apogee/core/error.h"

namespace apogee {

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// The bytes of a file with this header text and data; `length` may state a wrong length.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data,
                                    int64_t length = -1) {
  const uint64_t stated = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &stated, 8);
  return bytes + header + data;
}

// Collects tensors and metadata. Metadata values may contain quotes but nothing else that needs
// escaping.
class SafetensorsFile {
 public:
  void Meta(const std::string& key, const std::string& value) {
    std::string escaped;
    for (const char c : value) {
      if (c == '"') escaped += '\\';
      escaped += c;
    }
    const char* comma = metadata_.empty() ? "" : ",";
    metadata_ += internal::Concat(comma, "\"", key, "\":\"", escaped, "\"");
  }
  template <typename T>
  void Add(const std::string& name, const char* dtype, const std::vector<int64_t>& shape,
           const std::vector<T>& values) {
    std::string dims;
    for (const int64_t size : shape) dims += internal::Concat(dims.empty() ? "" : ",", size);
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    tensors_ += internal::Concat(",\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", dims,
                                 "],\"data_offsets\":[", begin, ",", data_.size(), "]}");
  }
  std::string Bytes() const {
    return SafetensorsBytes("{\"__metadata__\":{" + metadata_ + "}" + tensors_ + "}", data_);
  }
  void Write(const std::string& path) const { WriteBytes(path, Bytes()); }

 private:
  std::string metadata_, tensors_, data_;
};

}  // namespace apogee

#endif  // APOGEE_TESTS_SUPPORT_FILES_SAFETENSORS_FILE_H_
