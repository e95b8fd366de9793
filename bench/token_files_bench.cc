// SPDX-License-Identifier: Apache-2.0

// The speed of reading token files from the page cache, and what it costs to open a huge one.
// Prints one JSON line.
//
//   token_files_bench --dir /tmp --mib 256 --rounds 5
//
//   u16, u32         tokens/s of one thread that reads samples of --sample tokens at random places,
//                    with the check of the vocabulary
//   u16_plain        the same bytes at the same places by pread alone
//   megatron         as u16, from a pair with a document every 500 tokens
//   u16_begins       as u16, and the beginnings of documents in each sample
//   pair_open_us     to open the pair, in microseconds per thousand documents: all of its index is
//                    checked
//   open_ms          to open a sparse raw file of 10 GB and read its last tokens
//   open_rss_kib     how much more memory the process then has
//
// Rates are medians of the rounds in M tokens/s. The variants take turns within a round.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apogee/bench/median.h"
#include "apogee/core/process_memory.h"
#include "apogee/data/token_files/token_file.h"

using namespace apogee;
using namespace apogee::data;

namespace {

using apogee::bench::Median;

using Clock = std::chrono::steady_clock;

constexpr int32_t kVocabSize = 50257;

struct Setup {
  std::string dir = ".";
  int64_t mib = 256, sample = 1024;
  int rounds = 5;
};

double SecondsOf(const std::function<void()>& fn) {
  const Clock::time_point start = Clock::now();
  fn();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void Write(const std::string& path, const TokenWriterOptions& options, int64_t num_tokens) {
  const auto file = ValueOrThrow(TokenFileWriter::Create(path, options));
  std::vector<int32_t> ids(500);
  for (int64_t done = 0; done < num_tokens; done += 500) {
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>((done + static_cast<int64_t>(i) * 7919) % 50000);
    }
    ids[0] = 50256;
    OkOrThrow(file->Append(ids));
    OkOrThrow(file->EndDocument());
  }
  OkOrThrow(file->Finish());
}

// The first tokens of samples that together are a whole file.
std::vector<int64_t> Places(int64_t num_tokens, int64_t sample) {
  std::vector<int64_t> places;
  uint64_t state = 1;
  for (int64_t i = 0; i < num_tokens / sample; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    places.push_back(
        static_cast<int64_t>((state >> 20) % static_cast<uint64_t>(num_tokens - sample)));
  }
  return places;
}

void Measure(const Setup& setup) {
  const int64_t num_tokens = (setup.mib << 20) / 2;
  const std::string u16 = setup.dir + "/u16.bin", u32 = setup.dir + "/u32.bin",
                    pair = setup.dir + "/pair.idx";
  Write(u16, {.vocab_size = kVocabSize}, num_tokens);
  Write(u32, {}, num_tokens / 2);
  Write(pair, {.format = TokenFormat::kMegatron, .vocab_size = kVocabSize}, num_tokens);
  const TokenFileOptions options{.vocab_size = kVocabSize};
  std::vector<int32_t> ids(static_cast<size_t>(setup.sample));
  std::map<std::string, std::vector<double>> rates;
  const auto time = [&](const std::string& name, int64_t tokens,
                        const std::function<void(int64_t)>& read) {
    const std::vector<int64_t> places = Places(tokens, setup.sample);
    const double seconds = SecondsOf([&] {
      for (const int64_t place : places) read(place);
    });
    rates[name].push_back(static_cast<double>(tokens) / seconds * 1e-6);
  };
  const TokenSourcePtr sources[] = {ValueOrThrow(OpenTokenFile(u16, options)),
                                    ValueOrThrow(OpenTokenFile(u32, options)),
                                    ValueOrThrow(OpenTokenFile(pair, options))};
  const int plain = open(u16.c_str(), O_RDONLY);
  int64_t begins = 0;
  for (int round = 0; round < setup.rounds; ++round) {
    time("u16", num_tokens, [&](int64_t place) { sources[0]->Read(place, ids); });
    time("u16_plain", num_tokens, [&](int64_t place) {
      const auto bytes = static_cast<ssize_t>(2 * ids.size());
      APOGEE_CHECK(pread(plain, ids.data(), 2 * ids.size(), 1024 + 2 * place) == bytes, "pread");
    });
    time("u32", num_tokens / 2, [&](int64_t place) { sources[1]->Read(place, ids); });
    time("megatron", num_tokens, [&](int64_t place) { sources[2]->Read(place, ids); });
    for (const auto& [name, source] : {std::pair("u16_begins", 0), {"megatron_begins", 2}}) {
      time(name, num_tokens, [&, source = source](int64_t place) {
        sources[source]->Read(place, ids);
        begins += static_cast<int64_t>(sources[source]->DocumentBegins(place, setup.sample).size());
      });
    }
  }
  close(plain);
  std::printf("{\"sample\": %lld", static_cast<long long>(setup.sample));
  for (const auto& [name, values] : rates)
    std::printf(", \"%s\": %.0f", name.c_str(), Median(values));

  std::vector<double> pair_us;
  for (int round = 0; round < setup.rounds; ++round) {
    const double seconds = SecondsOf([&] { ValueOrThrow(OpenTokenFile(pair)); });
    pair_us.push_back(seconds * 1e6 / (static_cast<double>(num_tokens) / 500 / 1000));
  }
  std::printf(", \"pair_open_us\": %.1f", Median(pair_us));
  const std::string huge = setup.dir + "/huge.bin";
  close(open(huge.c_str(), O_WRONLY | O_CREAT, 0666));
  std::filesystem::resize_file(huge, 10'000'000'000);
  std::vector<double> open_ms;
  const int64_t before = ValueOrThrow(ReadProcessMemory()).resident_bytes;
  for (int round = 0; round < setup.rounds; ++round) {
    open_ms.push_back(1e3 * SecondsOf([&] {
                        const TokenSourcePtr source =
                            ValueOrThrow(OpenTokenFile(huge, {.format = TokenFormat::kRawU16}));
                        source->Read(source->num_tokens() - setup.sample, ids);
                      }));
  }
  const int64_t rss = ValueOrThrow(ReadProcessMemory()).resident_bytes - before;
  std::printf(", \"open_ms\": %.3f, \"open_rss_kib\": %lld}\n", Median(open_ms),
              static_cast<long long>(rss >> 10));
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup;
  CLI::App app("Speed of reading token files from the page cache.");
  app.add_option("--dir", setup.dir, "A folder for the files")
      ->capture_default_str()
      ->check(CLI::ExistingDirectory);
  app.add_option("--mib", setup.mib, "MiB of each file")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--sample", setup.sample, "Tokens that are read at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 18));
  app.add_option("--rounds", setup.rounds, "Rounds")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  setup.dir += "/token_files_bench." + std::to_string(getpid());
  try {
    std::filesystem::create_directory(setup.dir);
    Measure(setup);
  } catch (const std::exception& error) {
    std::filesystem::remove_all(setup.dir);
    std::fprintf(stderr, "token_files_bench: %s\n", error.what());
    return 1;
  }
  std::filesystem::remove_all(setup.dir);
  return 0;
}
