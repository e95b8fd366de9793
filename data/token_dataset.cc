// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/token_dataset.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "apogee/data/documents.h"

namespace apogee::data {
namespace {

void CheckIndex(const char* who, int64_t index, int64_t num_samples) {
  APOGEE_CHECK(index >= 0 && index < num_samples, who, ": sample ", index, " is outside [0, ",
               num_samples, ")");
}

void CheckOptions(const char* who, const TokenSourcePtr& source, int64_t block, int32_t pad) {
  APOGEE_CHECK(source != nullptr, who, ": the token source must not be null");
  APOGEE_CHECK(block >= 1, who, ": block must be at least 1, got ", block);
  APOGEE_CHECK(pad >= 0, who, ": pad must be a token id, got ", pad);
}

std::vector<Field> TokenFields(int64_t block, bool starts) {
  std::vector<Field> fields = {{"inputs", DType::kI64, {block}}, {"targets", DType::kI64, {block}}};
  if (starts) fields.push_back({"starts", DType::kI64, {block}});
  return fields;
}

// Two loops over one array each: both become vector instructions.
void Widen(const int32_t* __restrict tokens, int64_t count, int64_t* __restrict wide) {
  for (int64_t t = 0; t < count; ++t) wide[t] = tokens[t];
}

}  // namespace

PromptFunction PromptUpTo(int32_t marker) {
  return [marker](std::span<const int32_t> document) {
    const auto found = std::ranges::find(document, marker);
    APOGEE_CHECK(found != document.end(), "no token ", marker,
                 ", which ends the prompt; leave the document out, or give a PromptFunction of "
                 "your own");
    return found - document.begin() + 1;
  };
}

BlockDataset::BlockDataset(TokenSourcePtr source, const BlockOptions& options)
    : source_(std::move(source)), options_(options) {
  CheckOptions("BlockDataset", source_, options_.block, 0);
  APOGEE_CHECK(options_.stride >= 0, "BlockDataset: stride must not be negative, got ",
               options_.stride);
  if (options_.stride == 0) options_.stride = options_.block;
  APOGEE_CHECK(source_->num_tokens() > options_.block, "BlockDataset: ", source_->description(),
               " is too short: a block of ", options_.block, " needs ", options_.block + 1,
               " tokens, there are ", source_->num_tokens());
}

int64_t BlockDataset::num_samples() const {
  return (source_->num_tokens() - options_.block - 1) / options_.stride + 1;
}

std::vector<Field> BlockDataset::fields() const {
  return TokenFields(options_.block, options_.documents);
}

void BlockDataset::Fill(int64_t index, int64_t* inputs, int64_t* targets) const {
  APOGEE_CHECK(!options_.documents,
               "BlockDataset: with documents a sample has starts, too; call FillFields");
  ReadBlock(index, inputs, targets);
}

void BlockDataset::ReadBlock(int64_t index, int64_t* inputs, int64_t* targets) const {
  CheckIndex("BlockDataset", index, num_samples());
  std::vector<int32_t> tokens(static_cast<size_t>(options_.block) + 1);
  source_->Read(index * options_.stride, tokens);
  Widen(tokens.data(), options_.block, inputs);
  Widen(tokens.data() + 1, options_.block, targets);
}

void BlockDataset::FillFields(int64_t index, const SampleMemory& sample) const {
  int64_t* targets = sample.field<int64_t>(1).data();
  ReadBlock(index, sample.field<int64_t>(0).data(), targets);
  if (!options_.documents) return;
  const int64_t first = index * options_.stride;
  const std::span<int64_t> starts = sample.field<int64_t>(2);
  int64_t start = 0;  // of the document that is being written
  for (const int64_t begin : source_->DocumentBegins(first, options_.block + 1)) {
    const int64_t at = begin - first;
    if (at == 0) continue;
    targets[at - 1] = kIgnoredTarget;
    std::fill(starts.begin() + start, starts.begin() + at, start);
    start = at;
  }
  std::fill(starts.begin() + start, starts.end(), start);
}

TextDataset::TextDataset(TextSpan text, int64_t block, int64_t stride)
    : BlockDataset(BytesAsTokens(std::move(text)), {.block = block, .stride = stride}) {
  APOGEE_CHECK(stride >= 1, "TextDataset: stride must be at least 1, got ", stride);
}

DocumentDataset::DocumentDataset(TokenSourcePtr source, const DocumentOptions& options)
    : source_(std::move(source)), options_(options) {
  CheckOptions("DocumentDataset", source_, options_.block, options_.pad);
  documents_ = std::make_shared<const DocumentTable>(
      DocumentTable::Of(*source_, options_.prompt, "DocumentDataset"));
}

int64_t DocumentDataset::num_samples() const { return documents_->size(); }

void DocumentDataset::Fill(int64_t index, int64_t* inputs, int64_t* targets) const {
  CheckIndex("DocumentDataset", index, num_samples());
  const int64_t first = documents_->begin(index), block = options_.block;
  const int64_t length = std::min(block, documents_->end(index) - first);
  FillPiece(*source_, *documents_, index, first, length, inputs, targets);
  std::fill(inputs + length, inputs + block, options_.pad);
  std::fill(targets + length, targets + block, kIgnoredTarget);
}

PackedDataset::PackedDataset(TokenSourcePtr source, const PackedOptions& options)
    : source_(std::move(source)), options_(options) {
  CheckOptions("PackedDataset", source_, options_.block, options_.pad);
  documents_ = std::make_shared<const DocumentTable>(
      DocumentTable::Of(*source_, options_.prompt, "PackedDataset"));
  std::vector<Piece> pieces;
  std::vector<int64_t> lengths;
  for (int64_t d = 0; d < documents_->size(); ++d) {
    for (int64_t first = documents_->begin(d); first < documents_->end(d);
         first += options_.block) {
      const int64_t length = std::min(options_.block, documents_->end(d) - first);
      pieces.push_back({.document = d, .first = first, .length = length});
      lengths.push_back(length);
    }
  }
  const std::vector<int64_t> samples = FirstFit(lengths, options_.block);
  // Sorts the pieces by sample, and keeps their order within one.
  begins_.assign(static_cast<size_t>(std::ranges::max(samples)) + 2, 0);
  for (const int64_t sample : samples) ++begins_[static_cast<size_t>(sample) + 1];
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  std::vector<int64_t> next = begins_;
  pieces_.resize(pieces.size());
  for (size_t p = 0; p < pieces.size(); ++p) {
    pieces_[static_cast<size_t>(next[static_cast<size_t>(samples[p])]++)] = pieces[p];
  }
}

std::vector<Field> PackedDataset::fields() const {
  return TokenFields(options_.block, options_.documents);
}

void PackedDataset::FillFields(int64_t index, const SampleMemory& sample) const {
  CheckIndex("PackedDataset", index, num_samples());
  int64_t* inputs = sample.field<int64_t>(0).data();
  int64_t* targets = sample.field<int64_t>(1).data();
  int64_t* starts = options_.documents ? sample.field<int64_t>(2).data() : nullptr;
  int64_t at = 0;
  const auto begin = static_cast<size_t>(index);
  for (int64_t p = begins_[begin]; p < begins_[begin + 1]; ++p) {
    const Piece& piece = pieces_[static_cast<size_t>(p)];
    FillPiece(*source_, *documents_, piece.document, piece.first, piece.length, inputs + at,
              targets + at);
    if (starts != nullptr) {
      std::fill_n(starts + at, piece.length, at);
    } else if (at > 0 && piece.first - documents_->begin(piece.document) >=
                             documents_->prompt(piece.document)) {
      targets[at - 1] = inputs[at];
    }
    at += piece.length;
  }
  std::fill(inputs + at, inputs + options_.block, options_.pad);
  std::fill(targets + at, targets + options_.block, kIgnoredTarget);
  if (starts != nullptr) std::fill(starts + at, starts + options_.block, at);
}

}  // namespace apogee::data
