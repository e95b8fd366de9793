// SPDX-License-Identifier: Apache-2.0

// How many tokens per second one loader thread fills: 16 million tokens in documents of 1 to 2,000,
// from memory, and from a Megatron pair in the page cache. Prints one line per dataset, medians of
// the rounds:
//
//   loader_bench [block] [batch] [rounds] [folder for the pair]      # 1024 16 9 /tmp
//
//   filled    million tokens per second of processor time of the thread that fills
//   delivered million tokens per second that a loop gets which does nothing, with one thread
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/bench/median.h"
#include "apogee/core/rng.h"
#include "apogee/data/loader.h"
#include "apogee/data/mixture.h"
#include "apogee/data/token_dataset.h"
#include "apogee/data/token_files/token_file.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::data {
namespace {

using bench::Median;

constexpr int64_t kTokens = int64_t{1} << 24, kPerRound = int64_t{1} << 24;

TokenSourcePtr Tokens() {
  std::vector<int32_t> tokens(kTokens);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(i * 2654435761 % 50257);
  std::vector<int64_t> begins;
  for (int64_t at = 0, d = 0; at < kTokens; ++d) {
    begins.push_back(at);
    at += 1 + Philox(MakeKey(1, "lengths"), static_cast<uint64_t>(d))[0] % 2000;
  }
  return std::make_shared<MemoryTokenSource>(std::move(tokens), std::move(begins));
}

// The same tokens as a Megatron pair, which is removed again while it stays open.
TokenSourcePtr FileOf(const TokenSource& tokens, const std::string& folder) {
  const std::string stem = folder + "/apogee_loader_bench_" + std::to_string(getpid());
  const auto file = ValueOrThrow(TokenFileWriter::Create(
      stem + ".bin", {.format = TokenFormat::kMegatron, .vocab_size = 50257}));
  std::vector<int64_t> ends = tokens.DocumentBegins(0, kTokens);
  ends.push_back(kTokens);
  std::vector<int32_t> document;
  for (size_t d = 0; d + 1 < ends.size(); ++d) {
    document.resize(static_cast<size_t>(ends[d + 1] - ends[d]));
    tokens.Read(ends[d], document);
    OkOrThrow(file->Append(document));
    OkOrThrow(file->EndDocument());
  }
  OkOrThrow(file->Finish());
  TokenSourcePtr source = ValueOrThrow(OpenTokenFile(stem + ".bin"));
  for (const char* end : {".bin", ".idx"}) std::filesystem::remove(stem + end);
  return source;
}

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Measure(const char* name, const std::shared_ptr<const Dataset>& dataset,
             const std::shared_ptr<const Sampler>& order, int64_t batch, int rounds) {
  const int64_t block = dataset->block(), num_batches = kPerRound / block / batch;
  const auto rate = [&](Loader& loader, const std::function<double()>& clock) {
    const double begin = clock();
    for (int64_t k = 0; k < num_batches; ++k) loader.Next();
    return static_cast<double>(num_batches * batch * block) * 1e-6 / (clock() - begin);
  };
  Loader alone(dataset, order, CpuContext(), {.batch = batch});
  Loader threaded(dataset, order, CpuContext(), {.batch = batch, .threads = 1});
  std::vector<double> filled, delivered;
  for (int round = 0; round <= rounds; ++round) {
    const double own = rate(alone, ProcessorSeconds), other = rate(threaded, WallSeconds);
    if (round == 0) continue;  // caches and threads are cold
    filled.push_back(own);
    delivered.push_back(other);
  }
  std::printf("%-34s filled %6.0f  delivered %6.0f M tokens/s\n", name, Median(filled),
              Median(delivered));
}

void Run(int64_t block, int64_t batch, int rounds, const std::string& folder) {
  const TokenSourcePtr source = Tokens();
  const auto measure = [&](const char* name, const std::shared_ptr<const Dataset>& dataset) {
    Measure(name, dataset, std::make_shared<ShuffleSampler>(dataset->num_samples(), 1), batch,
            rounds);
  };
  const auto blocks = std::make_shared<BlockDataset>(source, BlockOptions{.block = block});
  measure("blocks", blocks);
  measure("blocks with documents",
          std::make_shared<BlockDataset>(source, BlockOptions{.block = block, .documents = true}));
  measure("documents", std::make_shared<DocumentDataset>(source, DocumentOptions{.block = block}));
  measure("packed documents",
          std::make_shared<PackedDataset>(source, PackedOptions{.block = block}));
  const auto mixture =
      std::make_shared<MixtureDataset>(MixtureDataset::Parts{blocks, blocks, blocks});
  Measure("mixture of three times blocks", mixture,
          std::make_shared<MixtureSampler>(*mixture, MixtureOptions{.weights = {5, 2, 1}}), batch,
          rounds);
  const TokenSourcePtr file = FileOf(*source, folder);
  measure("file, blocks", std::make_shared<BlockDataset>(file, BlockOptions{.block = block}));
  measure("file, blocks with documents",
          std::make_shared<BlockDataset>(file, BlockOptions{.block = block, .documents = true}));
  measure("file, packed documents",
          std::make_shared<PackedDataset>(file, PackedOptions{.block = block}));
}

}  // namespace
}  // namespace apogee::data

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) {
    return argc > i ? std::max<int64_t>(1, std::atoll(argv[i])) : otherwise;
  };
  apogee::data::Run(number(1, 1024), number(2, 16), static_cast<int>(number(3, 9)),
                    argc > 4 ? argv[4] : "/tmp");
  return 0;
}
