// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/text_corpus.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/data/corpus_sources.h"

namespace apogee::data {

absl::StatusOr<TextCorpus> TextCorpus::Load(const std::vector<std::string>& paths,
                                            const TextCorpusOptions& options) {
  APOGEE_ASSIGN_OR_RETURN(TextSource source,
                          paths.empty() ? ReadDefaultText() : ReadTextFiles(paths));
  return FromSource(std::move(source), options);
}

absl::StatusOr<TextCorpus> TextCorpus::FromSource(TextSource source,
                                                  const TextCorpusOptions& options) {
  const double fraction = options.validation_fraction;
  if (options.block < 1) {
    return InvalidArgument("data: block must be at least 1, got ", options.block);
  }
  if (!(fraction > 0 && fraction < 1)) {
    return InvalidArgument("data: validation_fraction must lie between 0 and 1, got ", fraction);
  }
  const auto total = static_cast<int64_t>(source.bytes.size());
  const auto train = static_cast<int64_t>(std::floor(static_cast<double>(total) * (1 - fraction)));
  const int64_t needed = options.block + 1;
  if (std::min(train, total - train) < needed) {
    const auto enough = static_cast<int64_t>(
        std::ceil(static_cast<double>(needed) / std::min(fraction, 1 - fraction)) + 1);
    return InvalidArgument(
        "data: too short: ", source.description, " leaves ", FormatThousands(train),
        " for training and ", FormatThousands(total - train), " for validation, but a block of ",
        options.block, " needs ", FormatThousands(needed), " in each; give at least ",
        FormatThousands(enough), " bytes or a smaller block");
  }
  TextCorpus corpus;
  corpus.text_ = std::make_shared<const std::string>(std::move(source.bytes));
  corpus.train_bytes_ = train;
  corpus.description_ = std::move(source.description);
  corpus.notice_ = std::move(source.notice);
  return corpus;
}

}  // namespace apogee::data
