// SPDX-License-Identifier: Apache-2.0

// Saves with use_async: what is saved is what was there at the call, and nothing of it gets lost.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/crash_file_system.h"
#include "apogee/tests/support/files/gate_file_system.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/zero_run.h"

namespace apogee {
namespace async_save_test {

using apogee::testing::CrashFileSystem;
using apogee::testing::GateFileSystem;
using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using apogee::testing::ZeroRun;
using ::testing::HasSubstr;
using FilesPtr = std::shared_ptr<checkpoint::FileSystem>;

// Every tensor of a checkpoint as bytes, and its attributes.
std::map<std::string, std::string> ContentsOf(const FilesPtr& files, const std::string& path) {
  const auto reader = ValueOrThrow(checkpoint::CheckpointReader::Open(files, path));
  std::map<std::string, std::string> contents = reader.attributes();
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    const Tensor whole =
        Tensor::Zeros(Shape(tensor.shape), *checkpoint::TensorDType(tensor.dtype), CpuContext());
    OkOrThrow(reader.Read(name, Layout(whole.shape()), whole));
    contents["tensor " + name].assign(static_cast<const char*>(whole.raw()),
                                      static_cast<size_t>(whole.bytes()));
  }
  return contents;
}

// All that training changes.
void Overwrite(ZeroRun& run) {
  for (const auto& parameter : run.model.Parameters()) parameter->data().Fill(-7);
  for (const optim::ParamView& view : run.optimizer.views()) {
    for (const optim::NamedState& state : view.states()) state.value.Fill(-7);
  }
}

TEST(AsyncSaveTest, SavesWhatWasThereAtTheCall) {
  const TempDir dir;
  const auto gate = std::make_shared<GateFileSystem>();
  std::atomic<int> saving = 0;
  RunRanks(2, [&](comm::World& world) {
    ZeroRun run(world);
    run.Step();
    ASSERT_EQ(run.booster.save_training_state(dir / "want", {.step = 1}), absl::OkStatus());
    if (world.rank() == 0) gate->Close();
    world.group()->Barrier();
    ASSERT_EQ(run.booster.save_training_state(dir / "got", {.step = 1},
                                              {.use_async = true, .files = gate}),
              absl::OkStatus());
    // Training communicates meanwhile.
    for (int i = 0; i < 3; ++i) run.Step();
    Overwrite(run);
    EXPECT_EQ(run.booster.save_status(), std::nullopt) << "it waits at the gate";
    if (++saving == 2) gate->Open();
    EXPECT_EQ(run.booster.wait_for_saves(), absl::OkStatus());
    EXPECT_EQ(run.booster.save_status(), absl::OkStatus());
  });
  const FilesPtr& files = checkpoint::RealFileSystem();
  const auto want = ContentsOf(files, dir / "want/step-00000001");
  EXPECT_GT(want.size(), 10u);
  EXPECT_EQ(ContentsOf(files, dir / "got/step-00000001"), want);
}

TEST(AsyncSaveTest, AThousandTimesOver) {
  RunRanks(1, [&](comm::World& world) {
    ZeroRun run(world);
    for (int64_t step = 1; step <= 1000; ++step) {
      const auto files = std::make_shared<CrashFileSystem>();
      run.Step();
      ASSERT_EQ(run.booster.save_training_state("want", {.step = step}, {.files = files}),
                absl::OkStatus());
      ASSERT_EQ(run.booster.save_training_state("got", {.step = step},
                                                {.use_async = true, .files = files}),
                absl::OkStatus());
      Overwrite(run);
      ASSERT_EQ(run.booster.wait_for_saves(), absl::OkStatus());
      const std::string name = checkpoint::CheckpointName(step);
      ASSERT_EQ(ContentsOf(files, "got/" + name), ContentsOf(files, "want/" + name)) << step;
      ASSERT_TRUE(run.booster.load_optimizer("want/" + name, files).ok());
    }
  });
}

// Refused by all at the call, not by the thread of the one rank that writes the manifest.
TEST(AsyncSaveTest, TextsThatAreNotUtf8AreRefusedOnEveryRank) {
  const TempDir dir;
  for (const bool use_async : {false, true}) {
    RunRanks(2, [&](comm::World& world) {
      ZeroRun run(world);
      const absl::Status status = run.booster.save_training_state(
          dir / "run", {.step = 1, .extra = {{"path", "caf\xe9"}}}, {.use_async = use_async});
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(Message(status), HasSubstr("attribute \"extra/path\" is not UTF-8"));
      EXPECT_EQ(run.booster.save_training_state(
                    dir / "run", {.step = 1, .extra = {{"path", "caf\xc3\xa9 \"\\\n"}}},
                    {.use_async = use_async}),
                absl::OkStatus());
      EXPECT_EQ(run.booster.wait_for_saves(), absl::OkStatus());
      const auto resumed = run.booster.resume(dir / "run");
      ASSERT_TRUE(resumed.ok()) << resumed.status();
      EXPECT_EQ(resumed->position.extra.at("path"), "caf\xc3\xa9 \"\\\n");
    });
    std::filesystem::remove_all(dir / "run");
  }
}

TEST(AsyncSaveTest, TheNextSaveWaits) {
  const TempDir dir;
  const auto gate = std::make_shared<GateFileSystem>();
  RunRanks(1, [&](comm::World& world) {
    ZeroRun run(world);
    gate->Close();
    const SaveOptions options{.keep = 2, .use_async = true, .files = gate};
    ASSERT_EQ(run.booster.save_training_state(dir / "run", {.step = 1}, options), absl::OkStatus());
    EXPECT_EQ(run.booster.save_status(), std::nullopt);
    std::thread opener([&gate] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate->Open();
    });
    ASSERT_EQ(run.booster.save_model(dir / "model", {.files = gate}), absl::OkStatus());
    opener.join();
    EXPECT_EQ(run.booster.save_status(), absl::OkStatus());
    const auto found = checkpoint::FindCheckpoints(gate, dir / "run");
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->valid.size(), 1u);
  });
}

// A run that goes back to its last checkpoint finds the one that is being written.
TEST(AsyncSaveTest, ResumeWaits) {
  const TempDir dir;
  const auto gate = std::make_shared<GateFileSystem>();
  RunRanks(1, [&](comm::World& world) {
    ZeroRun run(world);
    gate->Close();
    ASSERT_EQ(run.booster.save_training_state(dir / "run", {.step = 7},
                                              {.use_async = true, .files = gate}),
              absl::OkStatus());
    std::thread opener([&gate] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate->Open();
    });
    const auto resumed = run.booster.resume(dir / "run");
    opener.join();
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_EQ(resumed->position.step, 7);
  });
}

// Ranks wait for a disk longer than for each other in training.
TEST(AsyncSaveTest, ASlowDiskIsNoFailure) {
  const TempDir dir;
  const auto gate = std::make_shared<GateFileSystem>();
  const auto train = [&](comm::World& world) {
    ZeroRun run(world);
    for (const bool use_async : {false, true}) {
      // Rank 0 is held up; the other one has nothing that it waits for but rank 0.
      const FilesPtr files = world.rank() == 0 ? gate : checkpoint::RealFileSystem();
      std::thread opener;
      if (world.rank() == 0) {
        gate->Close();
        opener = std::thread([&gate] {
          std::this_thread::sleep_for(std::chrono::milliseconds(1200));
          gate->Open();
        });
      }
      const absl::Status started = run.booster.save_training_state(
          dir / "run", {.step = use_async ? 2 : 1}, {.use_async = use_async, .files = files});
      const absl::Status saved = run.booster.wait_for_saves();
      if (opener.joinable()) opener.join();
      ASSERT_EQ(started, absl::OkStatus());
      ASSERT_EQ(saved, absl::OkStatus());
    }
  };
  EXPECT_EQ(comm::launch({.num_ranks = 2, .timeout_seconds = 0.5}, train), absl::OkStatus());
}

TEST(AsyncSaveTest, TheBoosterGoesOnlyWhenAllIsOnDisk) {
  const TempDir dir;
  const auto gate = std::make_shared<GateFileSystem>();
  std::thread opener;
  RunRanks(2, [&](comm::World& world) {
    ZeroRun run(world);
    if (world.rank() == 0) gate->Close();
    world.group()->Barrier();
    ASSERT_EQ(run.booster.save_training_state(dir / "run", {.step = 1},
                                              {.use_async = true, .files = gate}),
              absl::OkStatus());
    world.group()->Barrier();
    if (world.rank() == 0) {
      opener = std::thread([&gate] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        gate->Open();
      });
    }
  });
  const auto reader = checkpoint::CheckpointReader::Open(gate, dir / "run/step-00000001");
  opener.join();
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->Verify(), absl::OkStatus());
}

TEST(AsyncSaveTest, TheNextSaveTellsOfAFailure) {
  const auto files = std::make_shared<CrashFileSystem>();
  RunRanks(2, [&](comm::World& world) {
    ZeroRun run(world);
    const SaveOptions options{.use_async = true, .files = files};
    const auto save = [&](int64_t step) {
      return run.booster.save_training_state("run", {.step = step}, options);
    };
    ASSERT_EQ(save(1), absl::OkStatus());
    ASSERT_EQ(run.booster.wait_for_saves(), absl::OkStatus());
    world.group()->Barrier();
    if (world.rank() == 0) files->FailAt(2, absl::ResourceExhaustedError("the disk is full"));
    world.group()->Barrier();
    ASSERT_EQ(save(2), absl::OkStatus());
    const absl::Status failed = save(3);
    EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
    EXPECT_THAT(Message(failed), HasSubstr("the disk is full (the save is "));
    EXPECT_EQ(run.booster.wait_for_saves(), absl::OkStatus()) << "told once";
    ASSERT_EQ(save(4), absl::OkStatus());
    ASSERT_EQ(run.booster.wait_for_saves(), absl::OkStatus());
  });
  const auto found = ValueOrThrow(checkpoint::FindCheckpoints(files, "run"));
  ASSERT_EQ(found.valid.size(), 2u);
  EXPECT_EQ(found.valid[0].step, 1);
  EXPECT_EQ(found.valid[1].step, 4);
}

TEST(AsyncSaveTest, NoticesComeFromTheCallersThread) {
  const TempDir dir;
  RunRanks(1, [&](comm::World& world) {
    ZeroRun run(world);
    ASSERT_EQ(run.booster.save_training_state(dir / "run", {.step = 1}), absl::OkStatus());
    ASSERT_TRUE(std::filesystem::remove(dir / "run/step-00000001/manifest.json"));
    std::vector<std::thread::id> callers;
    const SaveOptions options{.use_async = true, .notice = [&](const std::string& text) {
                                EXPECT_THAT(text, HasSubstr("step-00000001 was damaged"));
                                callers.push_back(std::this_thread::get_id());
                              }};
    ASSERT_EQ(run.booster.save_training_state(dir / "run", {.step = 1}, options), absl::OkStatus());
    ASSERT_EQ(run.booster.wait_for_saves(), absl::OkStatus());
    ASSERT_EQ(callers.size(), 1u);
    EXPECT_EQ(callers[0], std::this_thread::get_id());
  });
}

// Where the run ends by an exception, what a notice refers to goes before the Booster does.
TEST(AsyncSaveTest, NoticesThatNobodyWaitedForArePrinted) {
  const TempDir dir;
  ::testing::internal::CaptureStderr();
  RunRanks(1, [&](comm::World& world) {
    ZeroRun run(world);
    ASSERT_EQ(run.booster.save_training_state(dir / "run", {.step = 1}), absl::OkStatus());
    ASSERT_TRUE(std::filesystem::remove(dir / "run/step-00000001/manifest.json"));
    const auto notice = [](const std::string&) { ADD_FAILURE() << "called by the destructor"; };
    ASSERT_EQ(run.booster.save_training_state(dir / "run", {.step = 1},
                                              {.use_async = true, .notice = notice}),
              absl::OkStatus());
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("step-00000001 was damaged"));
}

// A rank copies what it writes, not what it holds, and only until that is written.
TEST(AsyncSaveTest, CopiesOnlyWhatARankWrites) {
  const TempDir dir;
  RunRanks(2, [&](comm::World& world) {
    ZeroRun run(world, /*width=*/256);
    run.Step();
    const int64_t weights = (8 * 256 + 256 + 256 * 4 + 4) * 4;
    MemoryLedger& ledger = world.context()->ledger();
    ASSERT_EQ(run.booster.save_training_state(dir / "run", {.step = 1}, {.use_async = true}),
              absl::OkStatus());
    ASSERT_EQ(run.booster.wait_for_saves(), absl::OkStatus());
    // Half of the weights and of two states.
    EXPECT_NEAR(static_cast<double>(ledger.peak_bytes(MemoryCategory::kCheckpoint)),
                1.5 * static_cast<double>(weights), 0.35 * static_cast<double>(weights));
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kCheckpoint), 0);
  });
}

TEST(AsyncSaveTest, LoadsWait) {
  const TempDir dir;
  const auto gate = std::make_shared<GateFileSystem>();
  RunRanks(1, [&](comm::World& world) {
    ZeroRun run(world);
    run.Step();
    for (const std::string what : {"model", "optimizer"}) {
      gate->Close();
      ASSERT_EQ(what == "model"
                    ? run.booster.save_model(dir / what, {.use_async = true, .files = gate})
                    : run.booster.save_optimizer(dir / what, {.use_async = true, .files = gate}),
                absl::OkStatus());
      std::thread opener([&gate] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        gate->Open();
      });
      EXPECT_EQ(what == "model" ? run.booster.load_model(dir / what).status()
                                : run.booster.load_optimizer(dir / what),
                absl::OkStatus());
      opener.join();
      EXPECT_EQ(run.booster.wait_for_saves(), absl::OkStatus());
    }
  });
}

TEST(AsyncSaveTest, ModelAndOptimizerToo) {
  const TempDir dir;
  const auto gate = std::make_shared<GateFileSystem>();
  RunRanks(2, [&](comm::World& world) {
    ZeroRun run(world);
    run.Step();
    ASSERT_EQ(run.booster.save_model(dir / "model"), absl::OkStatus());
    ASSERT_EQ(run.booster.save_optimizer(dir / "optimizer"), absl::OkStatus());
    for (const std::string what : {"model", "optimizer"}) {
      if (world.rank() == 0) gate->Close();
      world.group()->Barrier();
      const absl::Status started =
          what == "model"
              ? run.booster.save_model(dir / "model2", {.use_async = true, .files = gate})
              : run.booster.save_optimizer(dir / "optimizer2", {.use_async = true, .files = gate});
      ASSERT_EQ(started, absl::OkStatus());
      Overwrite(run);
      world.group()->Barrier();
      gate->Open();
      ASSERT_EQ(run.booster.wait_for_saves(), absl::OkStatus());
      ASSERT_TRUE(run.booster.load_model(dir / "model").ok());
      ASSERT_EQ(run.booster.load_optimizer(dir / "optimizer"), absl::OkStatus());
    }
  });
  EXPECT_EQ(ReadFile(dir / "model2/model.safetensors"), ReadFile(dir / "model/model.safetensors"));
  EXPECT_EQ(ContentsOf(gate, dir / "optimizer2"), ContentsOf(gate, dir / "optimizer"));
}

TEST(AsyncSaveTest, NoRoomIsToldBeforeAnythingIsWritten) {
  const TempDir dir;
  const auto files = std::make_shared<GateFileSystem>();
  RunRanks(2, [&](comm::World& world) {
    ZeroRun run(world);
    run.Step();
    ASSERT_EQ(run.booster.save_training_state(dir / "run", {.step = 1}, {.files = files}),
              absl::OkStatus());
    // Weights, two states: 316 elements each.
    files->free_bytes = 2 * 3 * 316 * 4;
    EXPECT_EQ(run.booster.check_space(dir / "run", 2, files), absl::OkStatus());
    world.group()->Barrier();
    files->free_bytes = 2 * 3 * 316 * 4 - 1;
    const absl::Status two = run.booster.check_space(dir / "run", 2, files);
    EXPECT_TRUE(absl::IsResourceExhausted(two)) << two;
    EXPECT_THAT(Message(two), HasSubstr("2 checkpoints of 3.7 KiB need 7.4 KiB, only 7.4 KiB"));
    EXPECT_TRUE(absl::IsNotFound(run.booster.check_space(dir / "typo")));
    world.group()->Barrier();
    files->free_bytes = 1000;
    const absl::Status full =
        run.booster.save_training_state(dir / "run", {.step = 2}, {.files = files});
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_THAT(Message(full), HasSubstr("step-00000002: the save is 3.7 KiB, only 1000 B are free "
                                         "there; nothing was written"));
  });
  EXPECT_EQ(ValueOrThrow(files->List(dir / "run")), std::vector<std::string>{"step-00000001"});
}

}  // namespace async_save_test
}  // namespace apogee
