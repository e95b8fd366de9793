// SPDX-License-Identifier: Apache-2.0

// Samples over token sources, compared with naive definitions of each target and start.
#include "apogee/data/token_dataset.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "apogee/data/documents.h"
#include "apogee/nn/losses.h"
#include "apogee/tests/support/message_of.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee::data {
namespace token_dataset_test {

using apogee::testing::MessageOf;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;
using Documents = std::vector<std::vector<int32_t>>;

constexpr int64_t kNone = kIgnoredTarget;

// The fields of a sample, whatever the memory held before.
std::vector<Ids> Read(const Dataset& dataset, int64_t index) {
  const std::vector<Field> fields = dataset.fields();
  std::vector<Ids> values;
  std::vector<std::byte*> data;
  for (const Field& field : fields) {
    values.emplace_back(static_cast<size_t>(field.shape.numel()), -7);
  }
  for (Ids& each : values) data.push_back(reinterpret_cast<std::byte*>(each.data()));
  dataset.FillFields(index, SampleMemory(fields, data));
  return values;
}

// Documents of the given lengths; every token is another number.
Documents Numbered(const std::vector<int64_t>& lengths) {
  Documents documents;
  int32_t next = 100;
  for (const int64_t length : lengths) {
    documents.emplace_back();
    for (int64_t i = 0; i < length; ++i) documents.back().push_back(next++);
  }
  return documents;
}

TokenSourcePtr SourceOf(const std::vector<int64_t>& lengths) {
  return std::make_shared<MemoryTokenSource>(Numbered(lengths));
}

TEST(TokenDatasetTest, IgnoredTargetsAreThoseOfTheLoss) {
  EXPECT_EQ(kIgnoredTarget, nn::CrossEntropyLoss().ignore_index);
}

TEST(TokenDatasetTest, BlocksAreTheStreamAndItsNextTokens) {
  const BlockDataset blocks(SourceOf({3, 5, 4}), {.block = 4});
  EXPECT_EQ(blocks.num_samples(), 2) << "the third would need token 12";
  EXPECT_EQ(Read(blocks, 1), (std::vector<Ids>{{104, 105, 106, 107}, {105, 106, 107, 108}}));
  const BlockDataset dense(SourceOf({3, 5, 4}), {.block = 4, .stride = 3});
  EXPECT_EQ(dense.num_samples(), 3);
  EXPECT_EQ(Read(dense, 2)[0], (Ids{106, 107, 108, 109}));
  const BlockDataset whole(SourceOf({5}), {.block = 4});
  EXPECT_EQ(whole.num_samples(), 1);
}

TEST(TokenDatasetTest, BlocksWithDocumentsStopAtJoins) {
  const std::vector<int64_t> lengths = {3, 1, 1, 9, 2, 4, 1};
  std::vector<int64_t> document_of, begin_of;
  for (size_t d = 0; d < lengths.size(); ++d) {
    const auto begin = static_cast<int64_t>(document_of.size());
    for (int64_t i = 0; i < lengths[d]; ++i) {
      document_of.push_back(static_cast<int64_t>(d));
      begin_of.push_back(begin);
    }
  }
  for (const int64_t stride : {1, 4}) {
    const BlockDataset blocks(SourceOf(lengths), {.block = 4, .stride = stride, .documents = true});
    for (int64_t i = 0; i < blocks.num_samples(); ++i) {
      const std::vector<Ids> sample = Read(blocks, i);
      for (int64_t t = 0; t < 4; ++t) {
        const auto at = static_cast<size_t>(i * stride + t), to = static_cast<size_t>(t);
        EXPECT_EQ(sample[0][to], 100 + i * stride + t);
        EXPECT_EQ(sample[1][to],
                  document_of[at] == document_of[at + 1] ? 101 + i * stride + t : kNone);
        EXPECT_EQ(sample[2][to], std::max<int64_t>(0, begin_of[at] - i * stride));
      }
    }
  }
}

TEST(TokenDatasetTest, DocumentsAreCutAndPadded) {
  const DocumentDataset documents(SourceOf({2, 6, 4, 1}), {.block = 4, .pad = 9});
  ASSERT_EQ(documents.num_samples(), 4);
  EXPECT_EQ(Read(documents, 0), (std::vector<Ids>{{100, 101, 9, 9}, {101, kNone, kNone, kNone}}));
  EXPECT_EQ(Read(documents, 1), (std::vector<Ids>{{102, 103, 104, 105}, {103, 104, 105, 106}}))
      << "the document goes on";
  EXPECT_EQ(Read(documents, 2), (std::vector<Ids>{{108, 109, 110, 111}, {109, 110, 111, kNone}}));
  EXPECT_EQ(Read(documents, 3), (std::vector<Ids>{{112, 9, 9, 9}, {kNone, kNone, kNone, kNone}}));
}

TEST(TokenDatasetTest, PromptsAreNotLearned) {
  const auto source = std::make_shared<MemoryTokenSource>(
      Documents{{1, 2, 50, 3, 4}, {50, 6}, {7, 8, 9, 1, 2, 50, 5}});
  const DocumentDataset marked(source, {.block = 5, .prompt = PromptUpTo(50)});
  EXPECT_EQ(Read(marked, 0)[1], (Ids{kNone, kNone, 3, 4, kNone}));
  EXPECT_EQ(Read(marked, 1)[1], (Ids{6, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(Read(marked, 2)[1], (Ids{kNone, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(Read(marked, 2)[0], (Ids{7, 8, 9, 1, 2})) << "inputs stay";
  // The third document is cut: its second piece begins in the prompt.
  const PackedDataset packed(source, {.block = 5, .prompt = PromptUpTo(50)});
  ASSERT_EQ(packed.num_samples(), 3);
  EXPECT_EQ(Read(packed, 1),
            (std::vector<Ids>{{50, 6, 50, 5, 0}, {6, kNone, 5, kNone, kNone}, {0, 0, 2, 2, 4}}));
  const DocumentDataset counted(source,
                                {.block = 5, .prompt = [](std::span<const int32_t> document) {
                                   return static_cast<int64_t>(document.size()) - 1;
                                 }});
  EXPECT_EQ(Read(counted, 0)[1], (Ids{kNone, kNone, kNone, 4, kNone}));
}

TEST(TokenDatasetTest, FirstFitIsTheFirstBinWithRoom) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 500; ++i) lengths.push_back(1 + (i * i * 7 + i) % 23);
  std::vector<int64_t> room, want;
  for (const int64_t length : lengths) {
    size_t bin = 0;
    while (bin < room.size() && room[bin] < length) ++bin;
    if (bin == room.size()) room.push_back(23);
    room[bin] -= length;
    want.push_back(static_cast<int64_t>(bin));
  }
  EXPECT_EQ(FirstFit(lengths, 23), want);
  EXPECT_EQ(FirstFit({}, 4), Ids{});
}

TEST(TokenDatasetTest, PackedSamplesHoldEachTokenOnce) {
  const PackedDataset packed(SourceOf({3, 9, 2, 1, 4, 1}), {.block = 4, .pad = 9});
  // 3 1 | 9 = 4 + 4 + 1 | 2 1 | 4
  ASSERT_EQ(packed.num_samples(), 5);
  const std::vector<Ids> first = Read(packed, 0);
  EXPECT_EQ(first,
            (std::vector<Ids>{{100, 101, 102, 111}, {101, 102, kNone, kNone}, {0, 0, 0, 3}}));
  EXPECT_EQ(Read(packed, 1)[1], (Ids{104, 105, 106, 107})) << "the document goes on";
  EXPECT_EQ(Read(packed, 3),
            (std::vector<Ids>{{112, 113, 114, 119}, {113, kNone, kNone, kNone}, {0, 0, 2, 3}}));
  Ids all;
  for (int64_t i = 0; i < packed.num_samples(); ++i) {
    const std::vector<Ids> sample = Read(packed, i);
    for (const int64_t token : sample[0]) {
      if (token != 9) all.push_back(token);
    }
  }
  std::ranges::sort(all);
  Ids want(20);
  std::iota(want.begin(), want.end(), 100);
  EXPECT_EQ(all, want);
}

TEST(TokenDatasetTest, PackedSamplesWithoutDocumentsLearnJoins) {
  const PackedDataset packed(SourceOf({3, 9, 2, 1, 3}), {.block = 4, .documents = false, .pad = 9});
  EXPECT_EQ(packed.fields().size(), 2u);
  EXPECT_EQ(Read(packed, 0), (std::vector<Ids>{{100, 101, 102, 111}, {101, 102, 111, kNone}}));
  EXPECT_EQ(Read(packed, 3), (std::vector<Ids>{{112, 113, 114, 9}, {113, 114, kNone, kNone}}));
  // The join to a prompt is not learned.
  const PackedDataset prompted(
      SourceOf({2, 2}),
      {.block = 4, .documents = false, .prompt = [](auto) { return int64_t{1}; }});
  EXPECT_EQ(Read(prompted, 0)[1], (Ids{101, kNone, 103, kNone}));
}

TEST(TokenDatasetTest, BytesAreTokens) {
  const auto text = std::make_shared<std::string>("xa\xff\0z!", 6);
  const BlockDataset blocks(BytesAsTokens({text, 1, 4}), {.block = 3});
  EXPECT_EQ(Read(blocks, 0), (std::vector<Ids>{{'a', 255, 0}, {255, 0, 'z'}}));
}

TEST(TokenDatasetTest, BadInputSaysWhatIsRight) {
  const auto message = [](auto make) { return MessageOf([&] { make(); }); };
  const TokenSourcePtr four = SourceOf({3, 1});
  const TokenSourcePtr none = std::make_shared<MemoryTokenSource>(std::vector<int32_t>());
  EXPECT_THAT(message([&] { BlockDataset(four, {.block = 4}); }),
              HasSubstr("BlockDataset: documents in memory, 4 tokens is too short: a block of 4 "
                        "needs 5 tokens, there are 4"));
  EXPECT_THAT(message([&] { BlockDataset(four, {.block = 0}); }),
              HasSubstr("block must be at least 1, got 0"));
  EXPECT_THAT(message([&] { BlockDataset(four, {.block = 2, .stride = -1}); }),
              HasSubstr("stride must not be negative, got -1"));
  EXPECT_THAT(message([&] { BlockDataset(nullptr, {.block = 2}); }), HasSubstr("must not be null"));
  EXPECT_THAT(message([&] { Read(BlockDataset(four, {.block = 2}), 1); }),
              HasSubstr("sample 1 is outside [0, 1)"));
  for (const auto& text : {message([&] { DocumentDataset(none, {.block = 4}); }),
                           message([&] { PackedDataset(none, {.block = 4}); })}) {
    EXPECT_THAT(text, HasSubstr("tokens in memory, 0 tokens has no documents"));
  }
  EXPECT_THAT(message([&] { MemoryTokenSource{Documents{}}; }),
              HasSubstr("there are no documents"));
  EXPECT_THAT(message([&] {
                MemoryTokenSource(Documents{{1}, {}});
              }),
              HasSubstr("document 1 of 2 is empty; leave it out"));
  EXPECT_THAT(message([&] {
                MemoryTokenSource({1, 2, 3}, {0, 2, 2});
              }),
              HasSubstr("document 1 has tokens [2, 2) of 3: it is empty"));
  EXPECT_THAT(message([&] { MemoryTokenSource({1, 2, 3}, {1}); }), HasSubstr("must begin at 0"));
  EXPECT_THAT(message([&] {
                MemoryTokenSource({1, 2, 3}, {0, 3});
              }),
              HasSubstr("document 1 has tokens [3, 3)"));
  EXPECT_THAT(message([&] { DocumentDataset(four, {.block = 4, .prompt = PromptUpTo(101)}); }),
              HasSubstr("document 1 (tokens 3 to 3): no token 101, which ends the prompt"));
  EXPECT_THAT(message([&] {
                PackedDataset(four, {.block = 4, .prompt = [](auto) { return int64_t{-1}; }});
              }),
              HasSubstr("document 0 (tokens 0 to 2): its prompt has -1 tokens; give 0 or more"));
  EXPECT_THAT(message([&] { PackedDataset(four, {.block = 4, .pad = -1}); }),
              HasSubstr("pad must be a token id, got -1"));
}

// A source whose documents are not what the interface promises.
class EmptyDocument : public MemoryTokenSource {
 public:
  EmptyDocument() : MemoryTokenSource({1, 2, 3, 4}) {}
  std::vector<int64_t> DocumentBegins(int64_t, int64_t) const override { return {0, 2, 2}; }
};

TEST(TokenDatasetTest, AnEmptyDocumentIsRefused) {
  const auto source = std::make_shared<EmptyDocument>();
  EXPECT_THAT(MessageOf([&] { DocumentDataset(source, {.block = 4}); }),
              HasSubstr("document 1 is empty (token 2)"));
}

}  // namespace token_dataset_test
}  // namespace apogee::data
