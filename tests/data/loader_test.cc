// SPDX-License-Identifier: Apache-2.0

// Fields of batches, windows, and batches that threads fill.
#include "apogee/data/loader.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

#include "apogee/data/token_dataset.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/data/numbered_samples.h"
#include "apogee/tests/support/message_of.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee::data {
namespace loader_test {

using apogee::testing::IdsOf;
using apogee::testing::MessageOf;
using apogee::testing::NumberedSamples;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

// Samples of an image, a class and two numbers.
class Images : public Dataset {
 public:
  int64_t num_samples() const override { return 10; }
  std::vector<Field> fields() const override {
    return {{"inputs", DType::kF32, {2, 3}},
            {"targets", DType::kI64, {}},
            {"weight", DType::kF64, {}},
            {"bytes", DType::kU8, {3}}};
  }
  void FillFields(int64_t index, const SampleMemory& sample) const override {
    const auto value = static_cast<double>(index);
    for (float& pixel : sample.field<float>(0)) pixel = static_cast<float>(value);
    sample.field<int64_t>(1)[0] = index == 3 ? kIgnoredTarget : index;
    sample.field<double>(2)[0] = value / 2;
    for (uint8_t& byte : sample.field<uint8_t>(3)) byte = static_cast<uint8_t>(index);
  }
};

std::shared_ptr<const Sampler> InOrder(int64_t n) { return std::make_shared<SequentialSampler>(n); }

TEST(BatchesTest, BatchesHaveTheFieldsOfTheDataset) {
  Loader loader(std::make_shared<Images>(), InOrder(10), CpuContext(), {.batch = 4});
  loader.Next();
  const Batch batch = loader.Next();
  EXPECT_EQ(batch.inputs.shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(batch.inputs.ToVector<float>()[6], 5);
  EXPECT_EQ(batch.targets.ToVector<int64_t>(), (Ids{4, 5, 6, 7}));
  EXPECT_EQ(batch["weight"].ToVector<double>(), (std::vector<double>{2, 2.5, 3, 3.5}));
  EXPECT_EQ(batch["bytes"].shape(), (Shape{4, 3}));
  EXPECT_EQ(batch["bytes"].dtype(), DType::kU8);
  EXPECT_EQ(batch["inputs"].storage(), batch.inputs.storage());
  EXPECT_TRUE(batch.Has("targets") && batch.Has("weight") && !batch.Has("starts"));
  EXPECT_THAT(MessageOf([&] { std::ignore = batch["starts"]; }),
              HasSubstr("no field \"starts\"; the dataset gives inputs, targets, bytes, weight"));
  const Batch only(
      Loader(std::make_shared<NumberedSamples>(4), InOrder(4), CpuContext(), {}).Next());
  EXPECT_FALSE(only.targets.defined() || only.Has("targets"));
}

TEST(BatchesTest, WrongFieldsAreRefused) {
  class Wrong : public NumberedSamples {
   public:
    explicit Wrong(std::vector<Field> fields) : NumberedSamples(4), fields_(std::move(fields)) {}
    std::vector<Field> fields() const override { return fields_; }

   private:
    std::vector<Field> fields_;
  };
  const auto message = [](std::vector<Field> fields) {
    return MessageOf(
        [&] { Loader(std::make_shared<Wrong>(fields), InOrder(4), CpuContext(), {}).Next(); });
  };
  EXPECT_THAT(message({}), HasSubstr("first field must be \"inputs\", it is missing"));
  EXPECT_THAT(message({{"x", DType::kI64, {}}}), HasSubstr("it is \"x\""));
  EXPECT_THAT(message({{"inputs", DType::kI64, {}}, {"inputs", DType::kI64, {}}}),
              HasSubstr("two fields \"inputs\""));
  EXPECT_THAT(message({{"inputs", DType::kF32, {}}}),
              HasSubstr("field \"inputs\" is f32, not i64"));
  EXPECT_THAT(message({{"inputs", DType::kI64, {1, 1, 1, 1, 1, 1}}}), HasSubstr("at most 6"));
  class Nothing : public Dataset {
    int64_t num_samples() const override { return 4; }
  };
  EXPECT_THAT(
      MessageOf([] { Loader(std::make_shared<Nothing>(), InOrder(4), CpuContext(), {}); }),
      HasSubstr("override it for sequences of tokens, and fields and FillFields for other"));
}

TEST(BatchesTest, WindowsKnowTheirTargets) {
  // Documents of 1 to 5 tokens: the last of each has no target.
  std::vector<std::vector<int32_t>> documents;
  for (int32_t i = 0; i < 12; ++i) documents.emplace_back(static_cast<size_t>(i % 5) + 1, i);
  const auto dataset = std::make_shared<DocumentDataset>(
      std::make_shared<MemoryTokenSource>(documents), DocumentOptions{.block = 4});
  for (const int threads : {0, 2}) {
    Loader loader(dataset, InOrder(12), CpuContext(), {.batch = 2, .threads = threads});
    Ids targets, first;
    for (const Window& window : loader.Windows(3)) {
      EXPECT_EQ(window.batches.size(), 3u);
      targets.push_back(window.num_targets);
      for (const Batch& batch : window.batches) first.push_back(IdsOf(batch)[0]);
    }
    // A block of 4 cuts the fifth token, which is the fourth's target.
    EXPECT_EQ(targets, (Ids{0 + 1 + 2 + 3 + 4 + 0, 1 + 2 + 3 + 4 + 0 + 1}));
    EXPECT_EQ(first, (Ids{0, 2, 4, 6, 8, 10}));
    EXPECT_EQ(loader.state().samples, 12);
  }
  Loader images(std::make_shared<Images>(), InOrder(10), CpuContext(), {.batch = 2});
  EXPECT_EQ(images.NextWindow(2).num_targets, 3);
  EXPECT_THAT(MessageOf([&] { images.NextWindow(4); }),
              HasSubstr("a window of 4 batches, but the stream has only 3 more"));
  EXPECT_EQ(images.NextWindow(3).num_targets, 6) << "nothing was used";
  EXPECT_THAT(MessageOf([&] { images.Windows(0); }), HasSubstr("at least one batch, got 0"));
  Loader seven(std::make_shared<Images>(), InOrder(10), CpuContext(), {.num_batches = 7});
  EXPECT_THAT(MessageOf([&] { seven.Windows(2); }),
              HasSubstr("num_batches is 7, which is no multiple of a window of 2 batches"));
}

TEST(BatchesTest, ThreadsFillTheSameBatches) {
  const auto text = std::make_shared<std::string>(1000, 'x');
  for (size_t i = 0; i < text->size(); ++i) (*text)[i] = static_cast<char>(i * i % 251);
  const auto dataset = std::make_shared<TextDataset>(TextSpan{text, 0, 1000}, 8);
  const auto order = std::make_shared<ShuffleSampler>(dataset->num_samples(), 3);
  const auto batches = [&](const LoaderOptions& options) {
    Loader loader(dataset, order, CpuContext(), options);
    std::vector<Ids> all;
    for (int loop = 0; loop < 2; ++loop) {
      for (const Batch& batch : loader) {
        all.push_back(IdsOf(batch));
        all.push_back(batch.targets.ToVector<int64_t>());
      }
      EXPECT_EQ(loader.state().samples, (loop + 1) * 3 * 40);
    }
    return all;
  };
  const std::vector<Ids> want = batches({.batch = 3, .num_batches = 40});
  for (const int threads : {1, 2, 5}) {
    for (const int64_t prefetch : {0, 1, 7}) {
      EXPECT_EQ(batches({.batch = 3, .num_batches = 40, .threads = threads, .prefetch = prefetch}),
                want);
    }
  }
}

TEST(BatchesTest, ThreadsStopAtTheEndAndShortBatchesAreLast) {
  for (const int threads : {0, 3}) {
    Loader loader(std::make_shared<NumberedSamples>(10), InOrder(10), CpuContext(),
                  {.batch = 4, .drop_last = false, .threads = threads});
    std::vector<Ids> all;
    for (const Batch& batch : loader) all.push_back(IdsOf(batch));
    EXPECT_EQ(all, (std::vector<Ids>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}}));
    EXPECT_EQ(loader.state().samples, 10);
    EXPECT_THAT(MessageOf([&] { loader.Next(); }), HasSubstr("no further batch"));
  }
}

// Sample 13 cannot be read.
class Damaged : public NumberedSamples {
 public:
  Damaged() : NumberedSamples(100) {}
  void FillFields(int64_t index, const SampleMemory& sample) const override {
    if (index == 13) throw std::runtime_error("sample 13 is damaged");
    NumberedSamples::FillFields(index, sample);
  }
};

TEST(BatchesTest, AnErrorInAThreadReachesTheLoopAtItsBatch) {
  for (const int threads : {0, 1, 4}) {
    Loader loader(std::make_shared<Damaged>(), InOrder(100), CpuContext(),
                  {.batch = 2, .threads = threads});
    for (int64_t k = 0; k < 20; ++k) {
      if (k == 6) {
        std::string message;
        try {
          loader.Next();
        } catch (const std::runtime_error& error) {
          message = error.what();
        }
        EXPECT_EQ(message, "sample 13 is damaged") << threads << " threads";
      } else {
        EXPECT_EQ(IdsOf(loader.Next()), (Ids{2 * k, 2 * k + 1})) << threads << " threads";
      }
    }
  }
}

TEST(BatchesTest, SetStateAndSkipsRestartThreads) {
  Loader loader(std::make_shared<NumberedSamples>(1000), InOrder(1000), CpuContext(),
                {.batch = 2, .threads = 2, .prefetch = 8});
  EXPECT_EQ(IdsOf(loader.Next()), (Ids{0, 1}));
  loader.set_state({.samples = 501});
  EXPECT_EQ(IdsOf(loader.Next()), (Ids{501, 502}));
  EXPECT_EQ(loader.state().samples, 503);
  Loader moved = std::move(loader);
  auto at = moved.begin();
  ++at;  // a batch that nobody reads
  EXPECT_EQ(IdsOf(*at), (Ids{505, 506}));
  EXPECT_EQ(IdsOf(moved.At(3)), (Ids{6, 7})) << "counts from the beginning";
  EXPECT_EQ(IdsOf(moved.Next()), (Ids{507, 508}));
}

// Waits until the loop goes on, so that the threads have time to fill too much.
class Counting : public NumberedSamples {
 public:
  Counting() : NumberedSamples(1000) {}
  void FillFields(int64_t index, const SampleMemory& sample) const override {
    ++filled;
    NumberedSamples::FillFields(index, sample);
  }
  mutable std::atomic<int64_t> filled = 0;
};

TEST(BatchesTest, ThreadsSleepWhenEnoughIsFilled) {
  const auto dataset = std::make_shared<Counting>();
  Loader loader(dataset, InOrder(1000), CpuContext(), {.batch = 1, .threads = 2, .prefetch = 3});
  EXPECT_EQ(dataset->filled, 0) << "nothing before the first batch is asked for";
  loader.Next();
  while (dataset->filled < 4) std::this_thread::yield();
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  EXPECT_EQ(dataset->filled, 4) << "one taken, three ahead";
  const auto ms =
      (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
  EXPECT_LT(ms, 25) << "of processor time while nothing is to do";
}

TEST(BatchesTest, AForkedChildGoesOn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  Loader loader(std::make_shared<NumberedSamples>(1000), InOrder(1000), CpuContext(),
                {.batch = 2, .threads = 2});
  loader.Next();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    bool same = true;
    {
      Loader own = std::move(loader);
      same = IdsOf(own.Next()) == Ids{2, 3} && IdsOf(own.Next()) == Ids{4, 5};
    }
    _exit(same ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(IdsOf(loader.Next()), (Ids{2, 3}));
}

TEST(BatchesTest, BadOptionsSayWhatIsRight) {
  const auto message = [](const LoaderOptions& options) {
    return MessageOf(
        [&] { Loader(std::make_shared<NumberedSamples>(9), InOrder(9), CpuContext(), options); });
  };
  EXPECT_THAT(message({.threads = -1}), HasSubstr("threads must be 0 to 1024, got -1"));
  EXPECT_THAT(message({.prefetch = 2}),
              HasSubstr("prefetch is 2, but without threads nothing is filled ahead"));
  EXPECT_THAT(message({.threads = 1, .prefetch = -2}), HasSubstr("must not be negative, got -2"));
}

}  // namespace loader_test
}  // namespace apogee::data
