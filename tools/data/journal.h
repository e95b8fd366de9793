// SPDX-License-Identifier: Apache-2.0

// Journal: how far `apogee data tokenize` has come, in a file beside the output. A run that was
// killed continues from there.
//
//   Journal journal("corpus.bin", run);
//   APOGEE_ASSIGN_OR_RETURN(std::optional<JournalEntry> last, journal.Read());
//   APOGEE_RETURN_IF_ERROR(journal.Write({position, state}));      // after a sync of the output
#ifndef APOGEE_TOOLS_DATA_JOURNAL_H_
#define APOGEE_TOOLS_DATA_JOURNAL_H_

#include <optional>
#include <string>

#include "apogee/data/token_files/resumable_writer.h"
#include "apogee/tools/data/text_input.h"

namespace apogee::tools {

struct JournalEntry {
  InputPosition position;
  data::TokenWriterState state;
  int64_t num_skipped = 0;
};

class Journal {
 public:
  // `run`: everything that the bytes of the output depend on, as one line.
  Journal(const std::string& output, std::string run);

  const std::string& path() const { return path_; }
  // Empty if there is none. FailedPrecondition for the journal of another run, DataLoss for a
  // damaged one.
  absl::StatusOr<std::optional<JournalEntry>> Read() const;
  // Replaces the last entry, atomically.
  absl::Status Write(const JournalEntry& entry) const;
  void Remove() const;

 private:
  std::string path_, run_;
};

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DATA_JOURNAL_H_
