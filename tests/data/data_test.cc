// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "apogee/data/corpus_sources.h"
#include "apogee/data/loader.h"
#include "apogee/data/text_corpus.h"
#include "apogee/data/token_dataset.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee::data {
namespace data_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DataTest : public ::testing::Test {
 protected:
  static std::string LoadError(const std::vector<std::string>& paths, int64_t block = 8) {
    const auto corpus = TextCorpus::Load(paths, {.block = block});
    return corpus.ok() ? "no error" : Message(corpus.status());
  }

  apogee::testing::TempDir dir_;
};

std::string Text(const TextSpan& span) {
  return span.text->substr(static_cast<size_t>(span.offset), static_cast<size_t>(span.size));
}

TEST_F(DataTest, SplitsFilesAndDirectoriesInOrder) {
  dir_.Write("dir/b.txt", std::string(60, 'b'));
  dir_.Write("dir/a.txt", std::string(30, 'a'));
  fs::create_symlink(dir_ / "dir/a.txt", dir_ / "dir/c.txt");
  const std::string last = dir_.Write("last.txt", std::string(10, '\xff'));
  const auto corpus = TextCorpus::Load({dir_ / "dir", last}, {.block = 8});
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(Text(corpus->train()), std::string(30, 'a') + std::string(60, 'b'));
  EXPECT_EQ(Text(corpus->validation()), std::string(10, '\xff'));
  EXPECT_THAT(corpus->description(), HasSubstr("3 files), 100 bytes"));
  EXPECT_EQ(corpus->notice(), "");
}

TEST_F(DataTest, BadInputSaysWhatIsRight) {
  EXPECT_THAT(LoadError({dir_ / "no"}), HasSubstr("/no does not exist; give a text"));
  EXPECT_THAT(LoadError({dir_.Write("empty", "")}), HasSubstr("/empty is empty; give a text file"));
  fs::create_directories(dir_ / "bare");
  EXPECT_THAT(LoadError({dir_ / "bare"}), HasSubstr("/bare holds no regular file"));
  EXPECT_THAT(LoadError({"/dev/null"}), HasSubstr("/dev/null is not a regular file"));
  const std::string shorter = dir_.Write("short", std::string(89, 'x'));
  EXPECT_THAT(
      LoadError({shorter}, 9),
      HasSubstr("leaves 80 for training and 9 for validation, but a block of 9 needs 10 in each; "
                "give at least 101 bytes or a smaller block"));
}

TEST_F(DataTest, KingJamesHasItsKnownSize) {
  const auto source = ReadKingJamesBible();
  if (!source.ok()) GTEST_SKIP() << source.status();
  EXPECT_EQ(source->bytes.size(), 4137850u);
  EXPECT_EQ(std::set<char>(source->bytes.begin(), source->bytes.end()).size(), 63u);
  EXPECT_EQ(source->bytes.substr(0, 16), "In the beginning");
}

TEST_F(DataTest, DefaultFallsBackToLicencesWithANotice) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", dir_.path().c_str(), 1);
  const auto corpus = TextCorpus::Load({}, {});
  setenv("PATH", path.c_str(), 1);
  if (!fs::exists("/usr/share/common-licenses")) GTEST_SKIP() << "not a Debian machine";
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_THAT(corpus->notice(), HasSubstr("apt-get install bible-kjv"));
  EXPECT_GT(corpus->num_bytes(), 100000);
}

TEST(ShuffleSampler, EachEpochIsAPermutationOfItsOwn) {
  for (const int64_t n : {1, 2, 3, 5, 64, 1000}) {
    const ShuffleSampler sampler(n, 7);
    std::vector<std::vector<int64_t>> epochs(2);
    for (int64_t i = 0; i < 2 * n; ++i)
      epochs[static_cast<size_t>(i / n)].push_back(sampler.Sample(i));
    for (auto epoch : epochs) {
      std::sort(epoch.begin(), epoch.end());
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(epoch[static_cast<size_t>(i)], i) << n;
    }
    if (n >= 64) {
      EXPECT_NE(epochs[0], epochs[1]);
    }
  }
}

TEST(ShuffleSampler, DependsOnSeedAndIndexOnly) {
  const ShuffleSampler a(1000, 1), b(1000, 1), c(1000, 2);
  std::vector<int64_t> forward, other;
  for (int64_t i = 0; i < 100; ++i) forward.push_back(a.Sample(i));
  for (int64_t i = 99; i >= 0; --i) EXPECT_EQ(b.Sample(i), forward[static_cast<size_t>(i)]);
  for (int64_t i = 0; i < 100; ++i) other.push_back(c.Sample(i));
  EXPECT_NE(forward, other);
  // No order left: neighbours in the stream are rarely neighbours in the text.
  int close = 0;
  for (size_t i = 1; i < 100; ++i) close += std::abs(forward[i] - forward[i - 1]) < 20 ? 1 : 0;
  EXPECT_LT(close, 15);
}

// Window by window, the ranks' parts laid end to end are the stream of one rank.
TEST(DistributedSampler, RanksTogetherReadTheOneRankStream) {
  const auto endless = std::make_shared<ShuffleSampler>(101, 5);
  const auto finite = std::make_shared<SequentialSampler>(101);
  for (int num_ranks = 1; num_ranks <= 4; ++num_ranks) {
    for (int64_t window = 1; window <= 4; ++window) {
      const int64_t step = num_ranks * window;
      for (const std::shared_ptr<const Sampler>& base :
           {std::shared_ptr<const Sampler>(endless), std::shared_ptr<const Sampler>(finite)}) {
        std::vector<int64_t> all, want;
        for (int64_t w = 0; w < 101 / step; ++w) {
          for (int rank = 0; rank < num_ranks; ++rank) {
            const DistributedSampler mine(base, rank, num_ranks, window);
            for (int64_t i = 0; i < window; ++i) all.push_back(mine.Sample(w * window + i));
          }
        }
        for (int64_t i = 0; i < 101 / step * step; ++i) want.push_back(base->Sample(i));
        EXPECT_EQ(all, want) << num_ranks << " ranks, window " << window;
      }
      const DistributedSampler last(finite, num_ranks - 1, num_ranks, window);
      EXPECT_EQ(last.size(), 101 / step * window) << "the same on every rank";
      EXPECT_EQ(last.num_samples(), 101);
      EXPECT_THROW(last.Sample(last.size()), Error);
      EXPECT_EQ(DistributedSampler(endless, 0, num_ranks, window).size(), Sampler::kEndless);
    }
  }
}

TEST(DistributedSampler, BadSettingsSayWhatIsRight) {
  auto error = [](const std::shared_ptr<const Sampler>& base, int rank, int num_ranks,
                  int64_t window) -> std::string {
    try {
      DistributedSampler sampler(base, rank, num_ranks, window);
      return "no error";
    } catch (const Error& thrown) {
      return thrown.what();
    }
  };
  const auto three = std::make_shared<ShuffleSampler>(3, 1);
  EXPECT_THAT(error(three, 0, 4, 1), HasSubstr("4 ranks share only 3 samples; use fewer ranks"));
  EXPECT_THAT(error(three, 2, 2, 1), HasSubstr("rank 2 is outside [0, 2)"));
  EXPECT_THAT(error(three, -1, 2, 1), HasSubstr("rank -1 is outside [0, 2)"));
  EXPECT_THAT(error(three, 0, 0, 1), HasSubstr("at least one rank, got 0"));
  EXPECT_THAT(error(three, 0, 2, 0), HasSubstr("window must be at least 1, got 0"));
  EXPECT_THAT(error(std::make_shared<SequentialSampler>(7), 0, 2, 4),
              HasSubstr("7 samples do not fill one window of 4 on each of 2 ranks"));
}

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() {
    auto text = std::make_shared<std::string>();
    for (int i = 0; i < 64; ++i) text->push_back(static_cast<char>(i));
    dataset_ = std::make_shared<TextDataset>(TextSpan{text, 0, 64}, 4);
  }
  std::shared_ptr<ShuffleSampler> Shuffled() {
    return std::make_shared<ShuffleSampler>(dataset_->num_samples(), 3);
  }

  ContextPtr context_ = CpuContext();
  std::shared_ptr<TextDataset> dataset_;
};

TEST_F(LoaderTest, TargetsFollowInputs) {
  Loader loader(dataset_, Shuffled(), context_, {.batch = 3});
  const Batch batch = loader.Next();
  EXPECT_EQ(batch.inputs.shape(), (Shape{3, 4}));
  const auto inputs = batch.inputs.ToVector<int64_t>();
  const auto targets = batch.targets.ToVector<int64_t>();
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(targets[i], inputs[i] + 1);
}

TEST_F(LoaderTest, MicroBatchesAreTheHalvesOfABatch) {
  Loader whole(dataset_, Shuffled(), context_, {.batch = 4});
  Loader half(dataset_, Shuffled(), context_, {.batch = 2});
  auto first = half.Next().inputs.ToVector<int64_t>();
  const auto second = half.Next().inputs.ToVector<int64_t>();
  first.insert(first.end(), second.begin(), second.end());
  EXPECT_EQ(whole.Next().inputs.ToVector<int64_t>(), first);
}

TEST_F(LoaderTest, LoopsGoOnAtTheCursorAndResume) {
  Loader loader(dataset_, Shuffled(), context_, {.batch = 2, .num_batches = 3});
  std::vector<int64_t> firsts;
  for (int loop = 0; loop < 2; ++loop) {
    for (auto& batch : loader) firsts.push_back(batch.inputs.ToVector<int64_t>()[0]);
  }
  ASSERT_EQ(firsts.size(), 6u);
  EXPECT_EQ(loader.state().samples, 12);
  Loader resumed(dataset_, Shuffled(), context_, {.batch = 2, .num_batches = 3});
  resumed.set_state({.samples = 8});
  for (auto& batch : resumed) {
    EXPECT_EQ(batch.inputs.ToVector<int64_t>()[0], firsts[4]);
    break;
  }
  EXPECT_EQ(resumed.state().samples, 10);
}

TEST_F(LoaderTest, ASequentialStreamEnds) {
  const auto strided =
      std::make_shared<TextDataset>(TextSpan{std::make_shared<std::string>(64, 'x'), 0, 64}, 4, 4);
  EXPECT_EQ(strided->num_samples(), 15);
  Loader loader(strided, std::make_shared<SequentialSampler>(15), context_, {.batch = 4});
  int count = 0;
  for ([[maybe_unused]] auto& batch : loader) ++count;
  EXPECT_EQ(count, 3);
  EXPECT_THROW(loader.Next(), Error);
  Loader whole(strided, std::make_shared<SequentialSampler>(15), context_,
               {.batch = 4, .drop_last = false});
  std::vector<int64_t> rows;
  for (auto& batch : whole) rows.push_back(batch.inputs.size(0));
  EXPECT_EQ(rows, (std::vector<int64_t>{4, 4, 4, 3}));
  EXPECT_THROW(Loader(strided, std::make_shared<SequentialSampler>(15), context_, {.batch = 16}),
               Error);
}

// A sampler of one's own, of which nothing is known but what it says.
class Beyond : public Sampler {
 public:
  explicit Beyond(int64_t sample) : sample_(sample) {}
  int64_t size() const override { return 8; }
  int64_t num_samples() const override { return 8; }
  int64_t Sample(int64_t index) const override { return index == 5 ? sample_ : 0; }

 private:
  int64_t sample_;
};

TEST_F(LoaderTest, ASamplerOfMoreSamplesThanTheDatasetHasIsRefused) {
  const auto message = [&](const std::shared_ptr<const Sampler>& sampler, int64_t batch) {
    try {
      const Loader loader(dataset_, sampler, context_, {.batch = 2});
      loader.At(batch);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(dataset_->num_samples(), 60);
  for (const std::shared_ptr<const Sampler>& sampler :
       {std::shared_ptr<const Sampler>(std::make_shared<SequentialSampler>(61)),
        std::shared_ptr<const Sampler>(std::make_shared<ShuffleSampler>(61, 1)),
        std::shared_ptr<const Sampler>(std::make_shared<DistributedSampler>(
            std::make_shared<ShuffleSampler>(61, 1), 1, 2, 2))}) {
    EXPECT_THAT(message(sampler, 0),
                HasSubstr("the sampler draws from 61 samples, the dataset has 60; make the sampler "
                          "for dataset->num_samples()"));
  }
  EXPECT_EQ(message(std::make_shared<Beyond>(59), 2), "nothing was thrown");
  for (const int64_t sample : {60, -1}) {
    EXPECT_EQ(message(std::make_shared<Beyond>(sample), 1), "nothing was thrown");
    EXPECT_THAT(message(std::make_shared<Beyond>(sample), 2),
                HasSubstr("at place 5 of the stream the sampler names sample " +
                          std::to_string(sample) + ", the dataset has 60"));
  }
}

}  // namespace data_test
}  // namespace apogee::data
