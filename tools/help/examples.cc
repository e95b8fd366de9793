// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/help/examples.h"

#include <map>

namespace apogee::tools {

std::vector<std::string> ExamplesOf(const std::string& command) {
  static const std::map<std::string, std::vector<std::string>> examples = {
      {"", {"apogee new my_app", "apogee plan llama2-7b --ranks 8 --memory 80GiB"}},
      {"completion", {"source <(apogee completion bash)"}},
      {"data", {"apogee data inspect tokens.bin"}},
      {"data convert", {"apogee data convert tokens.bin --to megatron --output corpus.bin"}},
      {"data inspect", {"apogee data inspect tokens.bin"}},
      {"data tokenize",
       {"apogee data tokenize book.txt --tokenizer tokenizer.json --output tokens.bin"}},
      {"data train-tokenizer",
       {"apogee data train-tokenizer book.txt --vocab-size 4096 --output tokenizer.json"}},
      {"data verify", {"apogee data verify tokens.bin"}},
      {"diff", {"apogee diff out/one_rank out/four_ranks"}},
      {"doctor", {"apogee doctor"}},
      {"evaluate", {"apogee evaluate MODEL_FOLDER --data book.txt"}},
      {"generate",
       {"apogee generate MODEL_FOLDER --prompt \"In the beginning\" --max-new-tokens 50"}},
      {"hang-report", {"apogee hang-report out/flight_records"}},
      {"inspect", {"apogee inspect out/checkpoints/step-100 --verify"}},
      {"man", {"apogee man plan | man -l -"}},
      {"matrix",
       {"apogee matrix --sample 100", "apogee matrix --only \"adamw/zero2/*\" --json cells.json"}},
      {"new", {"apogee new my_app"}},
      {"options", {"apogee options adamw"}},
      {"plan",
       {"apogee plan llama2-7b --ranks 8 --memory 80GiB --precision bf16",
        "apogee plan MODEL_FOLDER --ranks 4 --batch 16 --optimizer muon --measure"}},
      {"report", {"apogee report out/one_run out/another --out report.html"}},
      {"reshard",
       {"apogee reshard out/checkpoints/step-100 four_files --files 4",
        "apogee reshard out/checkpoints/step-100 for_transformers --weights"}},
      {"run", {"apogee run -n 4 build/my_app zero2 4"}},
      {"timeline", {"apogee timeline out/trace.json --svg timeline.svg"}},
      {"verify", {"apogee verify tests/golden --dtype f64"}},
  };
  const auto found = examples.find(command);
  return found == examples.end() ? std::vector<std::string>() : found->second;
}

}  // namespace apogee::tools
