// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/data/journal.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apogee/data/token_files/output_file.h"

namespace apogee::tools {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 24;

}  // namespace

Journal::Journal(const std::string& output, std::string run)
    : path_(data::TemporaryOf(output) + ".journal"), run_(std::move(run)) {}

absl::StatusOr<std::optional<JournalEntry>> Journal::Read() const {
  const auto file = data::OpenBytes(path_);
  if (absl::IsNotFound(file.status())) return std::nullopt;
  if (!file.ok()) return file.status();
  std::string text(static_cast<size_t>(std::min((*file)->size(), kMaxBytes)), '\0');
  APOGEE_RETURN_IF_ERROR((*file)->Read(0, std::as_writable_bytes(std::span(text))));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  JournalEntry entry;
  try {
    if (json.at("run").get<std::string>() != run_) {
      return absl::FailedPreconditionError(
          path_ +
          ": a run with other arguments, inputs or tokenizer was killed here; give the same again "
          "to continue it, or remove this file to start anew");
    }
    entry.position = {json.at("file"), json.at("byte"), json.at("line")};
    entry.state = {json.at("tokens"), json.at("open_tokens"), json.at("documents")};
    entry.num_skipped = json.at("skipped");
  } catch (const nlohmann::json::exception&) {
    return DataLoss(path_, ": is damaged; remove it to start anew");
  }
  return entry;
}

absl::Status Journal::Write(const JournalEntry& entry) const {
  const nlohmann::json json = {{"run", run_},
                               {"file", entry.position.file},
                               {"byte", entry.position.byte},
                               {"line", entry.position.line},
                               {"tokens", entry.state.num_tokens},
                               {"open_tokens", entry.state.open_tokens},
                               {"documents", entry.state.num_documents},
                               {"skipped", entry.num_skipped}};
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::string next = path_ + ".new";
  Descriptor file(open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.fd() < 0) return OsError(next, "create", errno);
  APOGEE_RETURN_IF_ERROR(WriteAll(file.fd(), next, std::as_bytes(std::span(text))));
  if (fsync(file.fd()) != 0) return OsError(next, "sync", errno);
  if (std::rename(next.c_str(), path_.c_str()) != 0) return OsError(path_, "replace", errno);
  return data::SyncFolderOf(path_);
}

void Journal::Remove() const {
  unlink((path_ + ".new").c_str());
  unlink(path_.c_str());
}

}  // namespace apogee::tools
