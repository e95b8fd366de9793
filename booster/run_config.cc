// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/run_config.h"

#include <cstdio>
#include <span>

#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/core/text/printable.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/lora/lora.h"
#include "apogee/nn/quantized/quantized_weight.h"
#include "apogee/tensor/kernels/block_codes.h"

namespace apogee {
namespace {

using Texts = RunConfig::Texts;

constexpr const char* kDigest = "config/digest";
constexpr const char* kIdentity = "config/identity/";
constexpr const char* kSettings = "config/setting/";

std::string OptionPrefix(size_t group) { return "config/option/" + std::to_string(group) + "/"; }

// XXH3-64 of keys and texts, each ended by a zero byte.
std::string DigestOf(const Texts& texts) {
  std::string all;
  for (const auto& [key, text] : texts) all += key + '\0' + text + '\0';
  std::string digest;
  for (const uint64_t block : checkpoint::BlockDigests(std::as_bytes(std::span(all)))) {
    char hex[20];
    std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(block));
    digest += hex;
  }
  return digest;
}

std::string Quoted(const std::string& text) {
  return internal::Concat("\"", Printable(text), "\"");
}

// Calls fn(key, saved, now) for each key that both have, with different texts.
template <typename Fn>
void ForEachDifference(const Texts& saved, const Texts& now, const Fn& fn) {
  for (const auto& [key, text] : saved) {
    const auto found = now.find(key);
    if (found != now.end() && found->second != text) fn(key, text, found->second);
  }
}

// The keys that only `a` has; names up to four of them.
std::string OnlyIn(const Texts& a, const Texts& b) {
  std::string names;
  int count = 0;
  for (const auto& [key, text] : a) {
    if (b.contains(key) || ++count > 4) continue;
    names += internal::Concat(count == 1 ? "" : ", ", Printable(key));
  }
  return count > 4 ? internal::Concat(names, " and ", count - 4, " more") : names;
}

void TellUncompared(const Texts& saved, const Texts& now, std::vector<std::string>& notices) {
  if (const std::string names = OnlyIn(saved, now); !names.empty()) {
    notices.push_back(internal::Concat("the saved run has ", names,
                                       " in its configuration, this one has not: not compared"));
  }
  if (const std::string names = OnlyIn(now, saved); !names.empty()) {
    notices.push_back(internal::Concat("this run has ", names,
                                       " in its configuration, the saved one has not: not "
                                       "compared"));
  }
}

std::string InGroup(size_t group, size_t num_groups) {
  return num_groups == 1 ? "" : " (parameter group " + std::to_string(group) + ")";
}

// "nf4 (28 weights)". Nothing if the base is not quantized.
void DescribeBase(const nn::Module& model, RunConfig& config) {
  std::map<std::string, int> counts;
  for (const auto& quantized : model.QuantizedWeights()) {
    const BlockCodes& codes = quantized->codes();
    ++counts[std::string(nn::Name(codes.kind)) + (codes.nested ? "" : " with f32 scales")];
  }
  std::vector<std::string> texts;
  for (const auto& [format, count] : counts) {
    texts.push_back(internal::Concat(format, " (", count, " weights)"));
  }
  if (!texts.empty()) config.identity["base in few bits"] = JoinTexts(texts, ", ");
}

// The scales of each adapter's layers, in order: "2 (14 layers), 1.5 (2 layers)".
void DescribeAdapters(nn::Module& model, RunConfig& config) {
  std::map<std::string, std::vector<std::pair<double, int>>> runs;
  for (const auto& [name, layer] : nn::AdaptedLayers(model)) {
    for (const nn::LoraFactors& factors : layer->adapters()) {
      auto& scales = runs[factors.adapter];
      if (scales.empty() || scales.back().first != factors.scale) {
        scales.emplace_back(factors.scale, 0);
      }
      ++scales.back().second;
      config.settings["dropout of adapter " + factors.adapter] = nn::ConfigText(factors.dropout);
    }
  }
  for (const auto& [adapter, scales] : runs) {
    std::vector<std::string> texts;
    for (const auto& [scale, count] : scales) {
      texts.push_back(internal::Concat(nn::ConfigText(scale), " (", count, " layers)"));
    }
    config.identity["scales of adapter " + adapter] = JoinTexts(texts, ", ");
  }
}

}  // namespace

RunConfig CompletedConfig(const RunConfig& given, nn::Module& model,
                          const optim::Optimizer& optimizer, const optim::LrScheduler* scheduler) {
  RunConfig config = given;
  const nn::ConfigTexts model_texts = nn::ConfigOf(model);
  for (const auto& [key, text] : model_texts.function) config.identity["model." + key] = text;
  for (const auto& [key, text] : model_texts.training) config.settings["model." + key] = text;
  DescribeBase(model, config);
  DescribeAdapters(model, config);
  config.options.clear();
  for (int group = 0; group < optimizer.num_groups(); ++group) {
    Texts options = optimizer.group_options(group);
    if (scheduler != nullptr && options.contains("lr")) {
      const auto bases = scheduler->state_dict().base_lrs;
      options["lr"] = optim::FormatOption(bases[static_cast<size_t>(group)]);
    }
    config.options.push_back(std::move(options));
  }
  return config;
}

RunConfig WithLayout(RunConfig config, const Plugin& plugin) {
  config.settings["plugin"] = plugin.name();
  config.settings["ranks"] = std::to_string(comm::GroupSize(plugin.group()));
  return config;
}

void AddConfig(const RunConfig& config, Attributes& attributes) {
  attributes.Set(kDigest, DigestOf(config.identity));
  for (const auto& [key, text] : config.identity) attributes.Set(kIdentity + key, text);
  for (const auto& [key, text] : config.settings) attributes.Set(kSettings + key, text);
  for (size_t group = 0; group < config.options.size(); ++group) {
    for (const auto& [key, text] : config.options[group]) {
      attributes.Set(OptionPrefix(group) + key, text);
    }
  }
}

absl::StatusOr<ConfigDifferences> CompareConfig(const Attributes& attributes, const RunConfig& now,
                                                const std::string& path) {
  ConfigDifferences differences;
  if (!attributes.contains(kDigest)) {
    differences.was_saved = false;
    differences.notices.emplace_back(
        "was saved by an earlier version, without its configuration: settings of the model and "
        "options of the optimizer are not compared; make sure that they equal that run's");
    return differences;
  }
  RunConfig& saved = differences.saved;
  saved.identity = attributes.Below(kIdentity);
  saved.settings = attributes.Below(kSettings);
  APOGEE_ASSIGN_OR_RETURN(const std::string digest, attributes.Get(kDigest));
  if (DigestOf(saved.identity) != digest) {
    return DataLoss(path, ": the configuration in it has digest ", DigestOf(saved.identity),
                    ", not the ", Printable(digest), " that was saved with it");
  }
  ForEachDifference(saved.identity, now.identity,
                    [&](const std::string& key, const std::string& then, const std::string& is) {
                      differences.refused +=
                          internal::Concat("\n  ", Printable(key), ": saved with ", Quoted(then),
                                           ", this run has ", Quoted(is));
                    });
  TellUncompared(saved.identity, now.identity, differences.notices);
  ForEachDifference(
      saved.settings, now.settings,
      [&](const std::string& key, const std::string& then, const std::string& is) {
        differences.notices.push_back(internal::Concat(
            Printable(key), " is ", Quoted(is), " now, in the saved run it was ", Quoted(then)));
      });
  for (size_t group = 0; group < now.options.size(); ++group) {
    saved.options.push_back(attributes.Below(OptionPrefix(group)));
    ForEachDifference(saved.options[group], now.options[group],
                      [&](const std::string& key, const std::string& then, const std::string& is) {
                        differences.notices.push_back(internal::Concat(
                            "the optimizer's ", Printable(key), " ", Printable(is),
                            InGroup(group, now.options.size()), " has no effect: the saved run's ",
                            Printable(then),
                            " is kept; to change it set it after resume, or begin a new run from "
                            "the saved weights"));
                      });
  }
  return differences;
}

}  // namespace apogee
