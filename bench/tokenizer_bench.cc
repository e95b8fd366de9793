// SPDX-License-Identifier: Apache-2.0

// Time to encode a file on one thread. scripts/compare_tokenizers.py compares it with Hugging
// Face's library:
//
//   tokenizer_bench TOKENIZER TEXT [--block 65536] [--repeat 3] [--ids FILE]
//
// The text is cut into blocks of bytes, each encoded on its own. --ids writes for each block the
// number of its ids and the ids, as int32.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "apogee/data/corpus_sources.h"
#include "apogee/data/tokenizer/load_tokenizer.h"

namespace {

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int Run(const std::string& tokenizer_path, const std::string& text_path, size_t block, int repeat,
        const std::string& ids_path) {
  using apogee::ValueOrThrow;
  const auto load_begin = std::chrono::steady_clock::now();
  const auto tokenizer = ValueOrThrow(apogee::data::LoadTokenizer(tokenizer_path));
  std::printf("%s, loaded in %.3f s\n", tokenizer->description().c_str(), Seconds(load_begin));
  const std::string text = ValueOrThrow(apogee::data::ReadTextFiles({text_path})).bytes;
  std::vector<int32_t> ids, counts;
  ids.reserve(text.size());
  std::vector<double> seconds;
  for (int i = 0; i < repeat; ++i) {
    ids.clear();
    counts.clear();
    const auto begin = std::chrono::steady_clock::now();
    for (size_t at = 0; at < text.size(); at += block) {
      const size_t before = ids.size();
      tokenizer->Encode(std::string_view(text).substr(at, block), ids);
      counts.push_back(static_cast<int32_t>(ids.size() - before));
    }
    seconds.push_back(Seconds(begin));
    std::printf("seconds %.4f\n", seconds.back());
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("%zu bytes, %zu ids, median %.1f MB/s\n", text.size(), ids.size(),
              static_cast<double>(text.size()) / seconds[seconds.size() / 2] / 1e6);
  if (ids_path.empty()) return 0;
  std::ofstream file(ids_path, std::ios::binary);
  const auto write = [&file](const int32_t* values, size_t count) {
    file.write(reinterpret_cast<const char*>(values),
               static_cast<std::streamsize>(count * sizeof(int32_t)));
  };
  size_t at = 0;
  for (const int32_t count : counts) {
    write(&count, 1);
    write(ids.data() + at, static_cast<size_t>(count));
    at += static_cast<size_t>(count);
  }
  return file.good() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Time to encode a text");
  std::string tokenizer, text, ids;
  size_t block = 64 << 10;
  int repeat = 3;
  app.add_option("tokenizer", tokenizer, "File of a tokenizer")->required();
  app.add_option("text", text, "File to encode")->required();
  app.add_option("--block", block, "Bytes of a block")->check(CLI::PositiveNumber);
  app.add_option("--repeat", repeat, "Repetitions")->check(CLI::PositiveNumber);
  app.add_option("--ids", ids, "File for the ids");
  CLI11_PARSE(app, argc, argv);
  try {
    return Run(tokenizer, text, block, repeat, ids);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", error.what());
    return 1;
  }
}
