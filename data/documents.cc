// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/documents.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace apogee::data {

DocumentTable DocumentTable::Of(const TokenSource& source, const PromptFunction& prompt,
                                const std::string& who) {
  const int64_t num_tokens = source.num_tokens();
  APOGEE_CHECK(num_tokens > 0, who, ": ", source.description(), " has no documents");
  DocumentTable table{.begins = source.DocumentBegins(0, num_tokens), .prompts = {}};
  APOGEE_CHECK(!table.begins.empty() && table.begins[0] == 0, who, ": ", source.description(),
               ": no document begins at token 0");
  table.begins.push_back(num_tokens);
  for (int64_t i = 0; i < table.size(); ++i) {
    APOGEE_CHECK(table.end(i) > table.begin(i), who, ": ", source.description(), ": document ", i,
                 " is empty (token ", table.begin(i), ")");
  }
  if (prompt == nullptr) return table;
  std::vector<int32_t> document;
  for (int64_t i = 0; i < table.size(); ++i) {
    document.resize(static_cast<size_t>(table.end(i) - table.begin(i)));
    source.Read(table.begin(i), document);
    const auto at = [&] {
      return internal::Concat(who, ": ", source.description(), ": document ", i, " (tokens ",
                              table.begin(i), " to ", table.end(i) - 1, "): ");
    };
    int64_t length = 0;
    try {
      length = prompt(document);
    } catch (const Error& error) {
      Throw(at(), error.what());
    }
    APOGEE_CHECK(length >= 0, at(), "its prompt has ", length, " tokens; give 0 or more");
    table.prompts.push_back(length);
  }
  return table;
}

void FillPiece(const TokenSource& source, const DocumentTable& documents, int64_t document,
               int64_t first, int64_t length, int64_t* inputs, int64_t* targets) {
  const int64_t end = documents.end(document);
  const int64_t read = std::min(length + 1, end - first);
  std::vector<int32_t> tokens(static_cast<size_t>(read));
  source.Read(first, tokens);
  std::copy_n(tokens.begin(), length, inputs);
  std::copy(tokens.begin() + 1, tokens.end(), targets);
  if (read == length) targets[length - 1] = kIgnoredTarget;
  // The target at `t` is token first + t + 1.
  const int64_t learned_from = documents.begin(document) + documents.prompt(document);
  std::fill_n(targets, std::clamp<int64_t>(learned_from - first - 1, 0, length), kIgnoredTarget);
}

std::vector<int64_t> FirstFit(const std::vector<int64_t>& lengths, int64_t capacity) {
  // A tree over the bins: each node has the largest room below it. There are at most as many bins
  // as lengths, and a bin that nothing is in has all its room.
  const size_t leaves = std::bit_ceil(std::max<size_t>(1, lengths.size()));
  std::vector<int64_t> room(2 * leaves, capacity);
  std::vector<int64_t> bins;
  bins.reserve(lengths.size());
  for (const int64_t length : lengths) {
    size_t node = 1;
    while (node < leaves) node = room[2 * node] >= length ? 2 * node : 2 * node + 1;
    bins.push_back(static_cast<int64_t>(node - leaves));
    room[node] -= length;
    while (node /= 2) room[node] = std::max(room[2 * node], room[2 * node + 1]);
  }
  return bins;
}

}  // namespace apogee::data
