// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/machine/rates.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apogee/core/process/thread_team.h"

namespace apogee::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

Json ToJson(const KernelRate& rate) {
  return {rate.seconds_per_call, rate.seconds_per_flop, rate.seconds_per_byte};
}

double Number(const Json& json) {
  const double number = json.get<double>();
  if (!std::isfinite(number) || number < 0) throw std::invalid_argument("a negative rate");
  return number;
}

KernelRate KernelRateOf(const Json& json) {
  return {Number(json.at(0)), Number(json.at(1)), Number(json.at(2))};
}

RateSet SetOf(const Json& json) {
  RateSet set{.ranks = json.at("ranks").get<int>(),
              .threads = json.at("threads").get<int>(),
              .precision = json.at("precision").get<std::string>(),
              .other = KernelRateOf(json.at("other"))};
  if (set.ranks < 1 || set.threads < 1) throw std::invalid_argument("ranks or threads below 1");
  for (const auto& [name, rate] : json.at("kernels").items()) {
    set.kernels[name] = KernelRateOf(rate);
  }
  for (const auto& [name, rate] : json.at("collectives").items()) {
    set.collectives[name] = {Number(rate.at(0)), Number(rate.at(1))};
  }
  if (json.contains("crowding")) set.crowding = std::max(1.0, Number(json.at("crowding")));
  return set;
}

bool IsSame(const RateSet& a, const RateSet& b) {
  return a.ranks == b.ranks && a.threads == b.threads && a.precision == b.precision;
}

}  // namespace

Rates RatesOfThisMachine() {
  Rates rates{.processor = "unknown", .cores = ShareOfCores(1)};
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      rates.processor = line.substr(colon + 2);
      break;
    }
  }
  return rates;
}

void Merge(const Rates& measured, Rates& into) {
  for (const RateSet& set : measured.sets) {
    std::erase_if(into.sets, [&](const RateSet& old) { return IsSame(old, set); });
    into.sets.push_back(set);
  }
}

std::string ToJson(const Rates& rates) {
  Json json = {{"rates", kFormat}, {"processor", rates.processor}, {"cores", rates.cores}};
  json["sets"] = Json::array();
  for (const RateSet& set : rates.sets) {
    Json one = {{"ranks", set.ranks}, {"threads", set.threads}, {"precision", set.precision}};
    one["kernels"] = Json::object();
    for (const auto& [name, rate] : set.kernels) one["kernels"][name] = ToJson(rate);
    one["other"] = ToJson(set.other);
    one["collectives"] = Json::object();
    for (const auto& [name, rate] : set.collectives) {
      one["collectives"][name] = {rate.seconds_per_call, rate.seconds_per_byte};
    }
    one["crowding"] = set.crowding;
    json["sets"].push_back(std::move(one));
  }
  return json.dump(1) + "\n";
}

absl::StatusOr<Rates> ParseRates(const std::string& text, const std::string& path) {
  try {
    const Json json = Json::parse(text);
    if (json.at("rates").get<int>() != kFormat) throw std::invalid_argument("another format");
    Rates rates{.processor = json.at("processor").get<std::string>(),
                .cores = json.at("cores").get<int>()};
    if (rates.cores < 1) throw std::invalid_argument("cores below 1");
    for (const Json& set : json.at("sets")) rates.sets.push_back(SetOf(set));
    return rates;
  } catch (const std::exception& error) {
    return DataLoss(path, ": not a file of measured rates: ", error.what(),
                    "; measure again with apogee plan --measure");
  }
}

absl::StatusOr<Machine> MachineOf(const Rates& rates, int num_ranks, int threads,
                                  Precision precision) {
  const int busy = std::clamp(rates.cores / threads, 1, num_ranks);
  const RateSet* best = nullptr;
  for (const RateSet& set : rates.sets) {
    if (set.threads != threads || set.precision != Name(precision)) continue;
    if (best == nullptr || std::abs(set.ranks - busy) < std::abs(best->ranks - busy)) best = &set;
  }
  if (best == nullptr) {
    return NotFound("no rates were measured for ranks of ", threads,
                    threads == 1 ? " thread" : " threads", " in ", Name(precision),
                    "; add --measure (about 40 s)");
  }
  return Machine{.name = rates.processor,
                 .kernels = best->kernels,
                 .other = best->other,
                 .collectives = best->collectives,
                 .cores = rates.cores,
                 .threads = threads,
                 .crowding = best->crowding};
}

}  // namespace apogee::plan
