// SPDX-License-Identifier: Apache-2.0

// What the datasets of documents share: where documents begin, how long their prompts are, and how
// a range of a document becomes inputs and targets.
//
//   const DocumentTable table = DocumentTable::Of(*source, prompt, "PackedDataset");
//   FillPiece(*source, table, /*document=*/3, /*first=*/100, /*length=*/20, inputs, targets);
#ifndef APOGEE_DATA_DOCUMENTS_H_
#define APOGEE_DATA_DOCUMENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/data/token_dataset.h"

namespace apogee::data {

struct DocumentTable {
  std::vector<int64_t> begins;   // and the end of the last document
  std::vector<int64_t> prompts;  // empty: no prompts

  int64_t size() const { return static_cast<int64_t>(begins.size()) - 1; }
  int64_t begin(int64_t document) const { return begins[static_cast<size_t>(document)]; }
  int64_t end(int64_t document) const { return begins[static_cast<size_t>(document) + 1]; }
  int64_t prompt(int64_t document) const {
    return prompts.empty() ? 0 : prompts[static_cast<size_t>(document)];
  }

  // Throws Error, which begins with `who`, for no documents, an empty one or a wrong prompt.
  static DocumentTable Of(const TokenSource& source, const PromptFunction& prompt,
                          const std::string& who);
};

// Writes tokens [first, first + length) of the source, all of one document, as inputs. The target
// of the document's last token is ignored, and so are tokens of the prompt as targets.
void FillPiece(const TokenSource& source, const DocumentTable& documents, int64_t document,
               int64_t first, int64_t length, int64_t* inputs, int64_t* targets);

// The bin of each length: the first with room for it, of bins that hold `capacity` each. No length
// is above the capacity.
std::vector<int64_t> FirstFit(const std::vector<int64_t>& lengths, int64_t capacity);

}  // namespace apogee::data

#endif  // APOGEE_DATA_DOCUMENTS_H_
