// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/format/safetensors_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include "apogee/checkpoint/format/tensor_file.h"

namespace apogee::checkpoint {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

struct SafetensorsReader::Descriptor {
  int fd;
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() { close(fd); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

namespace {

absl::Status ReadAt(int fd, const std::string& path, int64_t offset, int64_t bytes, void* to) {
  char* at = static_cast<char*>(to);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, at + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return DataLoss(path, ": byte ", offset + done, ": ", std::strerror(errno));
    if (got == 0) {
      return DataLoss(path, ": byte ", offset + done,
                      ": the file ended; it was cut short meanwhile");
    }
    done += got;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  // Does not block, so that a pipe of that name is refused and not waited for.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return NotFound(path, ": ", std::strerror(errno));
  auto file = std::make_shared<Descriptor>(fd);
  struct stat info {};
  if (fstat(fd, &info) != 0) return DataLoss(path, ": ", std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path, ": not a regular file");
  const auto file_bytes = static_cast<int64_t>(info.st_size);
  if (file_bytes < 8) {
    return DataLoss(path, ": has ", file_bytes,
                    " bytes; a safetensors file begins with an 8-byte length");
  }
  uint64_t header_bytes = 0;
  APOGEE_RETURN_IF_ERROR(ReadAt(fd, path, 0, 8, &header_bytes));
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes) ||
      header_bytes > static_cast<uint64_t>(file_bytes - 8)) {
    return DataLoss(path, ": byte 0: a header of ", header_bytes, " bytes; the file has ",
                    file_bytes - 8, " after this, and ", kMaxHeaderBytes, " is the limit");
  }
  const auto length = static_cast<int64_t>(header_bytes);
  std::string json(static_cast<size_t>(length), '\0');
  APOGEE_RETURN_IF_ERROR(ReadAt(fd, path, 8, length, json.data()));
  APOGEE_ASSIGN_OR_RETURN(
      SafetensorsHeader header,
      ParseSafetensorsHeader(json, {.path = path, .data_bytes = file_bytes - 8 - length}));
  return SafetensorsReader(path, std::move(file), std::move(header), 8 + length);
}

absl::StatusOr<Tensor> SafetensorsReader::Load(const std::string& name,
                                               const ContextPtr& context) const {
  const auto found = entries().find(name);
  if (found == entries().end()) return NotFound(path_, ": there is no tensor \"", name, "\"");
  const SafetensorsEntry& entry = found->second;
  const std::optional<DType> dtype = TensorDType(entry.dtype);
  if (!dtype) {
    return InvalidArgument(path_, ": tensor \"", name, "\" has dtype ", entry.dtype,
                           ", which this library does not compute with");
  }
  if (entry.shape.size() > static_cast<size_t>(Shape::kMaxRank)) {
    return InvalidArgument(path_, ": tensor \"", name, "\" has ", entry.shape.size(),
                           " dims, at most ", Shape::kMaxRank, " are supported");
  }
  const Tensor tensor = Tensor::Empty(Shape(entry.shape), *dtype, HostOf(context));
  APOGEE_RETURN_IF_ERROR(
      ReadAt(file_->fd, path_, data_start_ + entry.begin, tensor.bytes(), tensor.raw()));
  return tensor.To(context);
}

}  // namespace apogee::checkpoint
