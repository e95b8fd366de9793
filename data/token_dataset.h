// SPDX-License-Identifier: Apache-2.0

// Datasets over a TokenSource: blocks of the token stream, documents, packed documents.
//
//   auto blocks = std::make_shared<BlockDataset>(source, BlockOptions{.block = 1024});
//   auto packed = std::make_shared<PackedDataset>(
//       source, PackedOptions{.block = 1024, .prompt = PromptUpTo(kAnswer)});
//   const Batch batch = Loader(packed, order, context, {.batch = 8}).Next();
//   model({{"tokens", batch.inputs}, {"starts", batch["starts"]}});      // gives {"logits", ..}
//
// Fields, each i64 [block]:
//
//   inputs   token ids
//   targets  the token that follows each input; kIgnoredTarget where nothing is learned
//   starts   with `documents`: for each input the index in this sample at which its document begins
//
// A model that gets `starts` looks back to there and no further, and the position of token t is
// t - starts[t]. A model that gets none takes the tokens of a sample as one text.
//
// All constructors throw Error for options that are wrong, for a source without a sample, and for
// an empty document.
#ifndef APOGEE_DATA_TOKEN_DATASET_H_
#define APOGEE_DATA_TOKEN_DATASET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apogee/data/dataset.h"
#include "apogee/data/token_source.h"

namespace apogee::data {

struct DocumentTable;  // documents.h

// The number of tokens at the beginning of a document that are not learned. They are inputs, but
// never targets. The dataset's constructor calls it once for each document, in order.
using PromptFunction = std::function<int64_t(std::span<const int32_t> document)>;
// All tokens up to the first `marker`, and the marker. Throws Error for a document without it.
PromptFunction PromptUpTo(int32_t marker);

struct BlockOptions {
  int64_t block = 128;
  // Sample i begins at token i * stride. 0: block, so that samples do not overlap.
  int64_t stride = 0;
  // Gives `starts`, and ignores targets that belong to another document than their input.
  bool documents = false;
};

// Blocks of the token stream, wherever documents begin: block inputs and one token more.
class BlockDataset : public Dataset {
 public:
  BlockDataset(TokenSourcePtr source, const BlockOptions& options);
  int64_t num_samples() const override;
  int64_t block() const override { return options_.block; }
  std::vector<Field> fields() const override;
  // Without `documents`.
  void Fill(int64_t index, int64_t* inputs, int64_t* targets) const override;
  void FillFields(int64_t index, const SampleMemory& sample) const override;

 private:
  void ReadBlock(int64_t index, int64_t* inputs, int64_t* targets) const;

  TokenSourcePtr source_;
  BlockOptions options_;
};

// Blocks of the bytes of a text.
//   TextDataset train(corpus.train(), /*block=*/128);           // a sample starts at every byte
//   TextDataset validation(corpus.validation(), 128, /*stride=*/128);   // samples do not overlap
class TextDataset : public BlockDataset {
 public:
  TextDataset(TextSpan text, int64_t block, int64_t stride = 1);
};

struct DocumentOptions {
  int64_t block = 128;
  // The input where there is no token; its target is ignored.
  int32_t pad = 0;
  PromptFunction prompt = nullptr;
};

// One sample per document: its first `block` tokens, padded behind.
class DocumentDataset : public Dataset {
 public:
  DocumentDataset(TokenSourcePtr source, const DocumentOptions& options);
  int64_t num_samples() const override;
  int64_t block() const override { return options_.block; }
  void Fill(int64_t index, int64_t* inputs, int64_t* targets) const override;

 private:
  TokenSourcePtr source_;
  DocumentOptions options_;
  std::shared_ptr<const DocumentTable> documents_;
};

struct PackedOptions {
  int64_t block = 128;
  // Gives `starts`, and ignores targets that belong to another document than their input. False:
  // the first token of a document is the target of the last token of the one before it.
  bool documents = true;
  int32_t pad = 0;
  PromptFunction prompt = nullptr;
};

// Whole documents packed into samples, in order: each into the first sample that has room for it
// (first fit). Longer documents are cut into pieces of `block` tokens and a rest. Every token is an
// input once. The source decides the samples; memory: 40 bytes per document.
class PackedDataset : public Dataset {
 public:
  PackedDataset(TokenSourcePtr source, const PackedOptions& options);
  int64_t num_samples() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t block() const override { return options_.block; }
  std::vector<Field> fields() const override;
  void FillFields(int64_t index, const SampleMemory& sample) const override;

 private:
  // Tokens of one document that are in one sample.
  struct Piece {
    int64_t document = 0;
    int64_t first = 0;  // in the source
    int64_t length = 0;
  };

  TokenSourcePtr source_;
  PackedOptions options_;
  std::shared_ptr<const DocumentTable> documents_;
  std::vector<Piece> pieces_;    // of all samples, one sample after the other
  std::vector<int64_t> begins_;  // sample i has pieces [begins_[i], begins_[i + 1])
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKEN_DATASET_H_
