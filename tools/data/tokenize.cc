// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/data/tokenize.h"

#include <sys/stat.h>

#include <cerrno>
#include <numeric>
#include <sstream>

#include "apogee/core/process/ordered_workers.h"
#include "apogee/data/token_files/output_file.h"
#include "apogee/data/token_files/resumable_writer.h"
#include "apogee/data/token_files/stored_tokens.h"
#include "apogee/tools/data/journal.h"

namespace apogee::tools {
namespace {

using data::ResumableWriter;

// Size and time of a file, so that the journal notices another one.
absl::StatusOr<std::string> FactsOf(const std::string& path, int64_t& bytes) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return OsError(path, "open", errno);
  bytes = info.st_size;
  return internal::Concat(path, " ", info.st_size, " ", info.st_mtim.tv_sec, ".",
                          info.st_mtim.tv_nsec);
}

class TokenizeRun {
 public:
  TokenizeRun(const data::Tokenizer& tokenizer, const TokenizeOptions& options,
              const std::function<void(const TokenizeProgress&)>& report)
      : tokenizer_(tokenizer),
        options_(options),
        report_(report),
        input_(options.inputs, tokenizer, options.input) {}

  absl::StatusOr<TokenizeProgress> Do(const std::string& tokenizer_path) {
    APOGEE_ASSIGN_OR_RETURN(const std::string facts, Facts(tokenizer_path));
    const Journal journal(options_.output, facts);
    APOGEE_ASSIGN_OR_RETURN(std::optional<JournalEntry> last, journal.Read());
    APOGEE_ASSIGN_OR_RETURN(const bool has_begun, HasBegun());
    if (!has_begun) last.reset();  // killed when it had only to remove the journal
    const JournalEntry from = last.value_or(JournalEntry{});
    APOGEE_ASSIGN_OR_RETURN(
        writer_,
        ResumableWriter::Open(options_.output, options_.format,
                              WrittenType(options_.format, tokenizer_.vocab_size()), from.state));
    input_.Seek(from.position);
    progress_.resumed = last.has_value();
    progress_.num_skipped = from.num_skipped;
    progress_.bytes =
        std::accumulate(bytes_.begin(), bytes_.begin() + from.position.file, from.position.byte);
    absl::Status status;
    try {
      status = Pieces(journal);
    } catch (...) {
      journal.Remove();
      throw;
    }
    progress_.num_tokens = writer_->state().num_tokens;
    progress_.num_documents = writer_->state().num_documents;
    if (status.ok() && progress_.num_documents == 0) {
      status = InvalidArgument("the inputs hold no document with text; nothing was written");
    }
    if (status.ok()) status = writer_->Finish();
    journal.Remove();
    if (!status.ok()) return status;
    return progress_;
  }

 private:
  struct Encoded {
    absl::StatusOr<EncodedPiece> piece;
    InputPosition next;
    int64_t bytes = 0;
  };

  absl::StatusOr<std::string> Facts(const std::string& tokenizer_path) {
    std::ostringstream facts;
    facts << Name(options_.format) << "|" << options_.encode.field << "|"
          << options_.encode.end_of_text.value_or(-1) << "|" << options_.encode.skip_empty << "|"
          << options_.input.piece_bytes << "|" << tokenizer_.description() << " ";
    int64_t tokenizer_bytes = 0;
    if (tokenizer_path == "byte") {
      facts << tokenizer_path;
    } else {
      APOGEE_ASSIGN_OR_RETURN(const std::string file, FactsOf(tokenizer_path, tokenizer_bytes));
      facts << file;
    }
    for (const InputFile& input : options_.inputs) {
      APOGEE_ASSIGN_OR_RETURN(const std::string file, FactsOf(input.path, bytes_.emplace_back()));
      facts << "|" << static_cast<int>(input.kind) << " " << file;
    }
    progress_.total_bytes = std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0});
    return facts.str();
  }

  // Whether an earlier run has left its tokens.
  absl::StatusOr<bool> HasBegun() const {
    std::string path = options_.output;
    if (options_.format == data::TokenFormat::kMegatron) {
      APOGEE_ASSIGN_OR_RETURN(const data::MegatronPaths paths, data::MegatronPathsOf(path));
      path = paths.bin;
    }
    return !data::CheckFree(data::TemporaryOf(path)).ok();
  }

  absl::Status Pieces(const Journal& journal) {
    // In flight: enough to keep the threads busy. A huge piece goes alone.
    const int64_t budget = 2 * (options_.num_threads + 1) * options_.input.piece_bytes;
    OrderedWorkers<Encoded> workers(options_.num_threads == 1 ? 0 : options_.num_threads);
    int64_t in_flight = 0;
    const auto take = [&]() -> absl::Status {
      Encoded encoded = workers.Take();
      in_flight -= encoded.bytes;
      APOGEE_RETURN_IF_ERROR(encoded.piece.status());
      return Store(encoded, journal);
    };
    for (;;) {
      TextPiece piece;
      APOGEE_ASSIGN_OR_RETURN(const bool more, input_.Next(piece));
      if (!more) break;
      const auto bytes = static_cast<int64_t>(piece.text.size());
      while (workers.num_pending() > 0 && in_flight + bytes > budget) {
        APOGEE_RETURN_IF_ERROR(take());
      }
      in_flight += bytes;
      workers.Add([this, bytes, piece = std::move(piece)] {
        return Encoded{EncodePiece(tokenizer_, piece, options_.encode), piece.next, bytes};
      });
      if (options_.num_threads == 1) APOGEE_RETURN_IF_ERROR(take());
    }
    while (workers.num_pending() > 0) APOGEE_RETURN_IF_ERROR(take());
    return absl::OkStatus();
  }

  absl::Status Store(const Encoded& encoded, const Journal& journal) {
    const EncodedPiece& piece = *encoded.piece;
    size_t begin = 0;
    for (const size_t end : piece.ends) {
      APOGEE_RETURN_IF_ERROR(writer_->Append(std::span(piece.ids).subspan(begin, end - begin)));
      APOGEE_RETURN_IF_ERROR(writer_->EndDocument());
      begin = end;
    }
    APOGEE_RETURN_IF_ERROR(writer_->Append(std::span(piece.ids).subspan(begin)));
    progress_.bytes += encoded.bytes;
    progress_.num_skipped += piece.num_skipped;
    progress_.num_tokens = writer_->state().num_tokens;
    progress_.num_documents = writer_->state().num_documents;
    report_(progress_);
    unrecorded_ += encoded.bytes;
    if (unrecorded_ < options_.journal_bytes) return absl::OkStatus();
    unrecorded_ = 0;
    APOGEE_RETURN_IF_ERROR(writer_->Sync());
    return journal.Write({encoded.next, writer_->state(), progress_.num_skipped});
  }

  const data::Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const std::function<void(const TokenizeProgress&)>& report_;
  TextInput input_;
  std::vector<int64_t> bytes_;  // of each input
  std::unique_ptr<ResumableWriter> writer_;
  TokenizeProgress progress_;
  int64_t unrecorded_ = 0;
};

}  // namespace

absl::StatusOr<TokenizeProgress> Tokenize(
    const data::Tokenizer& tokenizer, const std::string& tokenizer_path,
    const TokenizeOptions& options, const std::function<void(const TokenizeProgress&)>& report) {
  return TokenizeRun(tokenizer, options, report).Do(tokenizer_path);
}

}  // namespace apogee::tools
