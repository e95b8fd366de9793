// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/metrics/tensorboard.h"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>

#include "apogee/booster/metrics/crc32c.h"

namespace apogee {
namespace {

// Protobuf wire types.
enum Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
constexpr uint64_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr uint64_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2, kSessionStatus = 1;
constexpr uint64_t kSessionStart = 1;  // SessionLog.SessionStatus.START

template <typename T>
void AppendLittleEndian(T value, std::string& out) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

void AppendVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

void AppendTag(uint64_t field, Wire wire, std::string& out) {
  AppendVarint(field << 3 | wire, out);
}

void AppendVarintField(uint64_t field, uint64_t value, std::string& out) {
  AppendTag(field, kVarint, out);
  AppendVarint(value, out);
}

void AppendBytesField(uint64_t field, const std::string& bytes, std::string& out) {
  AppendTag(field, kBytes, out);
  AppendVarint(bytes.size(), out);
  out += bytes;
}

void AppendDoubleField(uint64_t field, double value, std::string& out) {
  AppendTag(field, kFixed64, out);
  AppendLittleEndian(std::bit_cast<uint64_t>(value), out);
}

void AppendFloatField(uint64_t field, float value, std::string& out) {
  AppendTag(field, kFixed32, out);
  AppendLittleEndian(std::bit_cast<uint32_t>(value), out);
}

std::string FileName() {
  static std::atomic<int> number{0};
  char host[256] = "localhost";
  (void)gethostname(host, sizeof(host) - 1);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return "events.out.tfevents." + std::to_string(seconds.count()) + "." + host + "." +
         std::to_string(getpid()) + "." + std::to_string(number++);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::Create(
    const std::string& directory, int64_t first_step) {
  APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file,
                          LineFile::Create(directory + "/" + FileName()));
  auto writer = std::unique_ptr<TensorBoardWriter>(new TensorBoardWriter(std::move(file)));
  std::string version, log, start;
  AppendBytesField(kFileVersion, "brain.Event:2", version);
  APOGEE_RETURN_IF_ERROR(writer->WriteEvent(version));
  AppendVarintField(kSessionStatus, kSessionStart, log);
  AppendVarintField(kStep, static_cast<uint64_t>(first_step), start);
  AppendBytesField(kSessionLog, log, start);
  APOGEE_RETURN_IF_ERROR(writer->WriteEvent(start));
  return writer;
}

absl::Status TensorBoardWriter::Scalars(int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string entry;
    AppendBytesField(kValueTag, tag, entry);
    AppendFloatField(kValueSimple, static_cast<float>(value), entry);
    AppendBytesField(kSummaryValue, entry, summary);
  }
  std::string event;
  AppendVarintField(kStep, static_cast<uint64_t>(step), event);
  AppendBytesField(kSummary, summary, event);
  return WriteEvent(event);
}

absl::Status TensorBoardWriter::WriteEvent(const std::string& payload) {
  std::string event;
  AppendDoubleField(
      kWallTime,
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
      event);
  event += payload;
  std::string record;
  AppendLittleEndian(static_cast<uint64_t>(event.size()), record);
  AppendLittleEndian(MaskedCrc32c(record.data(), record.size()), record);
  record += event;
  AppendLittleEndian(MaskedCrc32c(event.data(), event.size()), record);
  return file_->Append(record);
}

}  // namespace apogee
