// SPDX-License-Identifier: Apache-2.0

// SafetensorsReader: reads safetensors files strictly. A file that breaks a rule of the format is
// an error.
//
//   auto file = checkpoint::SafetensorsReader::Open("model.safetensors");
//   if (!file.ok()) ...                             // names the file, the byte and the mistake
//   absl::StatusOr<Tensor> w = file->Load("wte.weight", context);
//
// Format: 8 bytes of little-endian header length, a JSON header, the tensors' bytes back to back,
// row-major and little-endian (https://github.com/huggingface/safetensors). Open reads and checks
// only the header. All reads use the one descriptor that it opened. Tensors of a dtype that Tensor
// lacks are listed but cannot be loaded.
#ifndef APOGEE_CHECKPOINT_FORMAT_SAFETENSORS_READER_H_
#define APOGEE_CHECKPOINT_FORMAT_SAFETENSORS_READER_H_

#include <memory>
#include <string>

#include "apogee/checkpoint/format/safetensors_header.h"
#include "apogee/tensor/tensor.h"

namespace apogee::checkpoint {

class SafetensorsReader {
 public:
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, SafetensorsEntry>& entries() const { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  bool contains(const std::string& name) const { return header_.entries.contains(name); }

  // Returns the tensor in its own dtype, in host memory of `context`. NotFound for an unknown name.
  absl::StatusOr<Tensor> Load(const std::string& name, const ContextPtr& context) const;

 private:
  struct Descriptor;

  SafetensorsReader(std::string path, std::shared_ptr<Descriptor> file, SafetensorsHeader header,
                    int64_t data_start)
      : path_(std::move(path)),
        file_(std::move(file)),
        header_(std::move(header)),
        data_start_(data_start) {}

  std::string path_;
  std::shared_ptr<Descriptor> file_;
  SafetensorsHeader header_;
  int64_t data_start_;
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FORMAT_SAFETENSORS_READER_H_
