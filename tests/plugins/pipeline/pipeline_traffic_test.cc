// SPDX-License-Identifier: Apache-2.0

// What stages of a pipeline send each other is what plugins/hybrid_parallel.h says, to the byte.
#include <gtest/gtest.h>

#include <atomic>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/support/files/trace_file.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace pipeline_traffic_test {

using comm::CollectiveKind;
using comm::Traffic;
using pipeline::ScheduleKind;
using testing::RunRanks;

constexpr int kStages = 4, kCopies = 2;
constexpr int64_t kVocab = 64, kTokens = 8, kDim = 32, kMicros = 4, kMicroSize = 2,
                  kBucketBytes = 20000;
constexpr int64_t kActivation = 4 * kMicroSize * kTokens * kDim;  // of a micro-batch
constexpr int64_t kHeader = 11 * 8;

struct Case {
  ScheduleKind schedule;
  int64_t crossings;  // of a micro-batch from one stage to another, in forward
  int chunks;
  bool is_vee;
};
const std::vector<Case>& Cases() {
  static const auto& cases =
      *new std::vector<Case>{{ScheduleKind::k1F1B, kStages - 1, 1, false},
                             {ScheduleKind::kInterleaved, 2 * kStages - 1, 2, false},
                             // The two parts at the bottom of the V are neighbours on one stage.
                             {ScheduleKind::kZbv, 2 * kStages - 2, 2, true}};
  return cases;
}

nn::Gpt2Config Config() {
  return {.vocab_size = kVocab, .n_positions = kTokens, .n_embd = kDim, .n_layer = 6, .n_head = 4};
}

HybridParallelOptions OptionsOf(const Case& c, int zero) {
  HybridParallelOptions options{.pp_size = kStages, .stage = zero};
  options.schedule = c.schedule;
  options.num_microbatches = kMicros;
  return options;
}

// Sums over the ranks.
struct Totals {
  std::atomic<int64_t> sends = 0, sent = 0, receives = 0, received = 0;
};

void ExpectTraffic(const Case& c, int zero, comm::World& world, std::array<Totals, 2>& totals) {
  nn::Gpt2 model(Config());
  model.Initialize(world.context(), {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {});
  HybridParallelPlugin plugin(world, {.bucket_bytes = kBucketBytes}, OptionsOf(c, zero));
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const comm::GroupPtr pp = plugin.mesh().group(comm::Axis::kPp);
  const comm::GroupPtr dp = plugin.mesh().group(comm::Axis::kDp);
  const int stage = plugin.mesh().coordinate(comm::Axis::kPp);
  // Its gradient is complete when that of every part that uses it is.
  const bool has_late_table = stage == 0 || (stage == kStages - 1 && !c.is_vee);
  double own_bytes = 0;
  for (const auto& parameter : model.Parameters()) {
    if (parameter->is_here()) own_bytes += static_cast<double>(4 * parameter->shape().numel());
  }
  const Tensor tokens =
      Tensor::Full({kMicros * kMicroSize, kTokens}, DType::kI64, 3, world.context());
  for (size_t step = 0; step < 2; ++step) {
    const Traffic before = pp->traffic(), data_before = dp->traffic();
    booster.execute_pipeline({tokens, tokens}, model, boosted.criterion, &boosted.optimizer);
    const Traffic stages = pp->traffic() - before;
    totals[step].sends += stages.calls(CollectiveKind::kSend);
    totals[step].sent += stages.bytes(CollectiveKind::kSend);
    totals[step].receives += stages.calls(CollectiveKind::kRecv);
    totals[step].received += stages.bytes(CollectiveKind::kRecv);
    // The loss, what was drawn, the loss's dtype, whether it is of boosted.criterion. At first
    // whether all got the same inputs.
    const int64_t checks = step == 0 ? 1 : 0;
    EXPECT_EQ(stages.calls(CollectiveKind::kAllReduce), checks);
    EXPECT_EQ(stages.bytes(CollectiveKind::kAllReduce), checks * 16);
    EXPECT_EQ(stages.bytes(CollectiveKind::kBroadcast), 4 * 8);
    EXPECT_EQ(stages.total_calls() - stages.calls(CollectiveKind::kSend) -
                  stages.calls(CollectiveKind::kRecv),
              1 + checks);
    boosted.optimizer.step();
    for (const auto& p : model.Parameters()) {
      if (p->is_here()) p->value();  // waits
    }
    const Traffic data = dp->traffic() - data_before;
    // Sums on shards take every micro-batch's gradients, but the table's, which wait for all.
    const double passes = zero == 2 ? kMicros : 1;
    const double late = has_late_table ? 4.0 * kVocab * kDim : 0;
    const double reduced = passes * (own_bytes - late) + late;
    // With each pass goes which parameters have a gradient, and a digest of the options.
    const double bits =
        (passes * c.chunks + 1) * (4 * static_cast<double>(model.Parameters().size()) + 16);
    const auto expect = [&](CollectiveKind kind, double want, double more) {
      const auto got = static_cast<double>(data.bytes(kind));
      const std::string what =
          std::string(comm::CollectiveName(kind)) + ", stage " + std::to_string(stage);
      EXPECT_GE(got, want) << what;
      EXPECT_LE(got, 1.02 * want + more) << what;
    };
    expect(CollectiveKind::kAllReduce, zero == 0 ? reduced : 0, bits + (zero == 0 ? 0 : 1000));
    expect(CollectiveKind::kReduceScatter, zero == 0 ? 0 : reduced, 0);
    // Four numbers of each copy, where the loss is.
    const bool has_loss = stage == (c.is_vee ? 0 : kStages - 1);
    const double targets = has_loss ? 4.0 * 8 * kCopies : 0;
    expect(CollectiveKind::kAllGather, (zero == 0 ? 0 : own_bytes) + targets, 0);
    boosted.optimizer.zero_grad();
  }
}

TEST(PipelineTrafficTest, BytesPerStepAreTheFormulas) {
  for (const Case& c : Cases()) {
    for (const int zero : {0, 1, 2}) {
      std::array<Totals, 2> totals;
      RunRanks(kCopies * kStages,
               [&](comm::World& world) { ExpectTraffic(c, zero, world, totals); });
      ASSERT_FALSE(HasFailure()) << Name(c.schedule) << ", zero " << zero;
      for (size_t step = 0; step < 2; ++step) {
        // Outputs and the gradients of inputs; the shapes of the first micro-batch's.
        const int64_t messages = 2 * kMicros * c.crossings;
        const int64_t headers = step == 0 ? c.crossings : 0;
        EXPECT_EQ(totals[step].sends, kCopies * (messages + headers)) << Name(c.schedule);
        EXPECT_EQ(totals[step].sent, kCopies * (messages * kActivation + headers * kHeader))
            << Name(c.schedule);
        EXPECT_EQ(totals[step].receives, totals[step].sends);
        EXPECT_EQ(totals[step].received, totals[step].sent);
      }
    }
  }
}

// A group of its own, whose bytes only a trace tells.
TEST(PipelineTrafficTest, ATiedTableIsAddedUpOncePerStep) {
  constexpr int kSteps = 2;
  for (const Case& c : Cases()) {
    Trace trace;
    OkOrThrow(comm::launch(
        {.num_ranks = kStages, .threads_per_rank = 1, .trace = &trace}, [&](comm::World& world) {
          nn::Gpt2 model(Config());
          model.Initialize(world.context(), {.seed = 1});
          optim::AdamW optimizer(model.Parameters(), {});
          HybridParallelPlugin plugin(world, {.bucket_bytes = kBucketBytes}, OptionsOf(c, 0));
          Booster booster(plugin);
          Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
          const Tensor tokens =
              Tensor::Full({kMicros * kMicroSize, kTokens}, DType::kI64, 3, world.context());
          for (int step = 0; step < kSteps; ++step) {
            booster.execute_pipeline({tokens, tokens}, model, boosted.criterion,
                                     &boosted.optimizer);
            boosted.optimizer.step();
            boosted.optimizer.zero_grad();
          }
        }));
    const testing::TraceFile file = testing::TraceFile::Of(trace);
    for (int rank = 0; rank < kStages; ++rank) {
      const bool shares = !c.is_vee && (rank == 0 || rank == kStages - 1);
      int64_t bytes = 0;
      for (const std::string& lane : file.Lanes(rank)) {
        if (!lane.starts_with("communication: [0 3]")) continue;
        for (const auto& span : file.Spans(rank, lane)) {
          EXPECT_EQ(span.at("name"), "all_reduce");
          bytes += span.at("args").at("bytes").get<int64_t>();
        }
      }
      // Whether there is a gradient, and the gradient.
      EXPECT_EQ(bytes, shares ? kSteps * (4 + 4 * kVocab * kDim) : 0)
          << Name(c.schedule) << ", rank " << rank;
    }
  }
}

}  // namespace pipeline_traffic_test
}  // namespace apogee
