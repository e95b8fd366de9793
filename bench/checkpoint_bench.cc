// SPDX-License-Identifier: Apache-2.0

// The speed of saving and loading checkpoints, next to the disk's own speed in the same minutes.
// Prints one JSON line per number of ranks.
//
//   checkpoint_bench --dir /tmp --mib 1024 --rounds 5           # 1, 2 and 4 ranks
//   checkpoint_bench --dir /tmp --columns --ranks 2             # loaded under another layout
//
//   save    SaveCheckpoint of f32 tensors of 16 MiB, each sharded evenly over the ranks; durable
//           when it returns
//   write   as many threads as ranks write the same bytes, each to a file of its own, in pieces of
//           4 MiB, and sync
//   load    CheckpointReader: checks all digests, and each rank reads its shards
//   read    as many threads read the same files to the same memory, by pread in pieces of 4 MiB
//
// Cold: the page cache was told to drop the files (the caches of disk and host machine cannot be
// told). Warm: the files were read before. All four take turns within a round. Rates are medians in
// MiB/s; ratios are medians of the rounds' ratios. With --columns each rank loads columns of the
// tensors (4096 rows of 1024), so every rank reads every block.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apogee/bench/median.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/comm/launch.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/tensor/cpu/cpu_context.h"

using namespace apogee;
using namespace apogee::checkpoint;

namespace {

using apogee::bench::Median;

using Clock = std::chrono::steady_clock;

constexpr int64_t kRows = 4096, kColumns = 1024, kTensorNumel = kRows * kColumns;
constexpr size_t kPiece = size_t{1} << 22;

struct Setup {
  std::string dir;
  int64_t mib = 1024;
  int ranks = 1;
  bool columns = false;
};

// The part of each tensor that a rank loads.
Layout LoadLayout(const Setup& setup, int rank) {
  const int64_t part = (setup.columns ? kColumns : kTensorNumel) / setup.ranks;
  std::vector<Segment> segments;
  for (int64_t row = 0; row < (setup.columns ? kRows : 1); ++row) {
    segments.push_back({row * kColumns + rank * part, part});
  }
  return Layout(Shape{kTensorNumel}, {.segments = segments});
}

class Bench {
 public:
  explicit Bench(const Setup& setup) : setup_(setup) {
    for (int rank = 0; rank < setup.ranks; ++rank) {
      std::vector<TensorPart>& parts = parts_.emplace_back();
      const int64_t numel = kTensorNumel / setup.ranks;
      for (int64_t i = 0; i < setup.mib / 16; ++i) {
        const Tensor value = Tensor::Empty({numel}, DType::kF32, CpuContext({.num_threads = 1}));
        for (int64_t k = 0; k < numel; ++k) {
          value.data<float>()[k] = static_cast<float>((k + i) % 997 + rank);
        }
        parts.push_back({"w" + std::to_string(i), value,
                         Layout(Shape{kTensorNumel}, {.segments = {{rank * numel, numel}}})});
      }
    }
  }

  double Write() {
    std::filesystem::create_directory(plain());
    const double seconds = OnRanks([&](const comm::World& world) {
      const std::string name = plain() + "/" + std::to_string(world.rank());
      const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
      for (const TensorPart& part : parts_[static_cast<size_t>(world.rank())]) {
        ForEachPiece(part, [&](std::span<std::byte> piece) {
          const auto all = static_cast<ssize_t>(piece.size());
          APOGEE_CHECK(write(fd, piece.data(), piece.size()) == all, "cannot write ", name);
        });
      }
      APOGEE_CHECK(fsync(fd) == 0 && close(fd) == 0, "cannot sync ", name);
    });
    std::filesystem::remove_all(plain());
    return seconds;
  }
  double Save() {
    std::filesystem::remove_all(saved());
    return OnRanks([&](const comm::World& world) {
      OkOrThrow(SaveCheckpoint({RealFileSystem(), saved()},
                               {{}, parts_[static_cast<size_t>(world.rank())]}, world.group()));
    });
  }
  double Read() {
    return OnRanks([&](const comm::World& world) {
      const auto file = ValueOrThrow(RealFileSystem()->Open(RankFile(world.rank())));
      int64_t at = file->size() % (1 << 20);  // bytes of the header
      for (const TensorPart& part : parts_[static_cast<size_t>(world.rank())]) {
        ForEachPiece(part, [&](std::span<std::byte> piece) {
          OkOrThrow(file->Read(at, piece));
          at += static_cast<int64_t>(piece.size());
        });
      }
    });
  }
  double Load() {
    return OnRanks([&](const comm::World& world) {
      const auto reader = ValueOrThrow(CheckpointReader::Open(RealFileSystem(), saved()));
      const Layout layout = LoadLayout(setup_, world.rank());
      for (const TensorPart& part : parts_[static_cast<size_t>(world.rank())]) {
        OkOrThrow(reader.Read(part.name, layout, part.value));
      }
    });
  }
  void DropCache() const {
    for (int rank = 0; rank < setup_.ranks; ++rank) {
      const int fd = open(RankFile(rank).c_str(), O_RDONLY);
      posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      close(fd);
    }
  }
  void Remove() const { std::filesystem::remove_all(saved()); }

 private:
  std::string plain() const { return setup_.dir + "/plain"; }
  std::string saved() const { return setup_.dir + "/saved"; }
  std::string RankFile(int rank) const {
    return saved() + "/rank-0000" + std::to_string(rank) + ".safetensors";
  }
  static void ForEachPiece(const TensorPart& part,
                           const std::function<void(std::span<std::byte>)>& fn) {
    std::span<std::byte> all(static_cast<std::byte*>(part.value.raw()),
                             static_cast<size_t>(part.value.bytes()));
    for (; !all.empty(); all = all.subspan(std::min(kPiece, all.size()))) {
      fn(all.first(std::min(kPiece, all.size())));
    }
  }
  // Seconds from when all ranks are ready until all have finished.
  double OnRanks(const std::function<void(const comm::World&)>& fn) const {
    double seconds = 0;
    OkOrThrow(
        comm::launch({.num_ranks = setup_.ranks, .threads_per_rank = 1, .timeout_seconds = 600},
                     [&](comm::World& world) {
                       const auto meet = [&] {
                         if (world.group() != nullptr) world.group()->Barrier();
                       };
                       meet();
                       const Clock::time_point start = Clock::now();
                       fn(world);
                       meet();
                       if (world.rank() != 0) return;
                       seconds = std::chrono::duration<double>(Clock::now() - start).count();
                     }));
    return seconds;
  }

  Setup setup_;
  std::vector<std::vector<TensorPart>> parts_;  // of each rank
};

void Measure(const Setup& setup, int rounds) {
  Bench bench(setup);
  std::map<std::string, std::vector<double>> rates, ratios;
  for (int round = 0; round < rounds; ++round) {
    // The order within a pair alternates from round to round.
    const auto pair = [&](const std::string& ours, const std::function<double()>& run_ours,
                          const std::string& plain, const std::function<double()>& run_plain) {
      double ours_s = round % 2 == 0 ? run_ours() : 0;
      const double plain_s = run_plain();
      if (round % 2 != 0) ours_s = run_ours();
      rates[ours].push_back(static_cast<double>(setup.mib) / ours_s);
      rates[plain].push_back(static_cast<double>(setup.mib) / plain_s);
      ratios[ours].push_back(plain_s / ours_s);
    };
    const auto cold = [&](double (Bench::*run)()) {
      return [&bench, run] {
        bench.DropCache();
        return (bench.*run)();
      };
    };
    const auto warm = [&](double (Bench::*run)()) {
      return [&bench, run] { return (bench.*run)(); };
    };
    pair("save", warm(&Bench::Save), "write", warm(&Bench::Write));
    pair("load_cold", cold(&Bench::Load), "read_cold", cold(&Bench::Read));
    pair("load_warm", warm(&Bench::Load), "read_warm", warm(&Bench::Read));
  }
  bench.Remove();
  std::printf("{\"ranks\": %d, \"mib\": %lld", setup.ranks, static_cast<long long>(setup.mib));
  for (const auto& [ours, plain] : std::vector<std::pair<std::string, std::string>>{
           {"save", "write"}, {"load_cold", "read_cold"}, {"load_warm", "read_warm"}}) {
    std::printf(", \"%s\": %.0f, \"%s\": %.0f, \"%s_ratio\": %.2f", ours.c_str(),
                Median(rates[ours]), plain.c_str(), Median(rates[plain]), ours.c_str(),
                Median(ratios[ours]));
  }
  std::printf("}\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  Setup setup{.dir = "."};
  std::vector<int> ranks = {1, 2, 4};
  int rounds = 5;
  CLI::App app("Speed of saving and loading checkpoints, next to the disk's own.");
  app.add_option("--dir", setup.dir, "A folder on the disk to measure")
      ->capture_default_str()
      ->check(CLI::ExistingDirectory);
  app.add_option("--mib", setup.mib, "MiB of state, a multiple of 16")
      ->capture_default_str()
      ->check(CLI::Range(16, 1 << 20));
  app.add_option("--ranks", ranks, "Numbers of ranks: 1, 2 or 4")
      ->capture_default_str()
      ->check(CLI::IsMember({1, 2, 4}));
  app.add_flag("--columns", setup.columns, "Load with another layout than was saved");
  app.add_option("--rounds", rounds, "Rounds in which the variants take turns")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  setup.dir += "/checkpoint_bench." + std::to_string(getpid());
  setup.mib -= setup.mib % 16;
  try {
    std::filesystem::create_directory(setup.dir);
    for (const int count : ranks) {
      setup.ranks = count;
      Measure(setup, rounds);
    }
  } catch (const std::exception& error) {
    std::filesystem::remove_all(setup.dir);
    std::fprintf(stderr, "checkpoint_bench: %s\n", error.what());
    return 1;
  }
  std::filesystem::remove_all(setup.dir);
  return 0;
}
