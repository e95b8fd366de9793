// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <utility>

#include "apogee/booster/metrics/step_rows.h"
#include "apogee/core/text/text.h"
#include "apogee/driver/records/expert_picture.h"
#include "apogee/driver/reports.h"

namespace apogee::driver {
namespace {

std::string RowOf(int64_t step, const std::vector<nn::Moe*>& layers,
                  const std::vector<double>& counts) {
  std::string row = "{\"step\":" + std::to_string(step) + ",\"loads\":[";
  auto next = counts.begin();
  for (const nn::Moe* layer : layers) {
    std::vector<std::string> each;
    for (int64_t e = 0; e < layer->config().num_experts; ++e) {
      each.push_back(std::to_string(std::llround(*next++)));
    }
    row += (layer == layers[0] ? "[" : ",[") + JoinTexts(each, ",") + "]";
  }
  return row + "]}\n";
}

std::string Describe(const std::vector<nn::Moe*>& layers, const std::vector<float>& shares) {
  std::string text = "loads of experts:";
  size_t begin = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto count = static_cast<size_t>(layers[l]->config().num_experts);
    const auto [least, most] = std::ranges::minmax(std::span(shares).subspan(begin, count));
    char part[64];
    std::snprintf(part, sizeof(part), "%s layer %zu %.2f to %.2f", l == 0 ? "" : ",", l,
                  static_cast<double>(least), static_cast<double>(most));
    text += part;
    begin += count;
  }
  return text + " of an even one";
}

}  // namespace

ExpertLoads::ExpertLoads(const Rank& rank, const RunFlags& flags, nn::Module& model,
                         const Plugin& plugin, int64_t done)
    : rank_(rank),
      flags_(flags),
      layers_(nn::MoeLayers(model)),
      copies_(static_cast<double>(rank.world.size()) / plugin.data_size()),
      step_(done),
      first_step_(done + 1) {
  size_t experts = 0;
  for (const nn::Moe* layer : layers_) experts += static_cast<size_t>(layer->config().num_experts);
  counts_.resize(experts);
  if (rank.world.rank() != 0 || flags.out.empty() || rank.world.context()->is_dry()) return;
  rows_ = ValueOrThrow(OpenStepRows(flags.out + "/expert_loads.jsonl", done)).file;
}

ExpertLoads::~ExpertLoads() = default;

void ExpertLoads::Count() {
  auto next = counts_.begin();
  for (const nn::Moe* layer : layers_) {
    for (const int64_t count : layer->record().counts) *next++ += static_cast<double>(count);
  }
}

std::string ExpertLoads::AfterStep() {
  ++step_;
  if (layers_.empty() || rank_.world.context()->is_dry()) return "";
  std::vector<double> counts = SumOverRanks(rank_.world, counts_);
  std::ranges::fill(counts_, 0.0);
  if (rank_.world.rank() != 0) return "";
  std::vector<float> shares;
  for (size_t begin = 0, l = 0; l < layers_.size(); ++l) {
    const auto experts = static_cast<size_t>(layers_[l]->config().num_experts);
    const std::span own = std::span(counts).subspan(begin, experts);
    double sum = 0;
    for (double& count : own) sum += count /= copies_;
    for (const double count : own) {
      shares.push_back(sum == 0 ? 0
                                : static_cast<float>(count * static_cast<double>(experts) / sum));
    }
    begin += experts;
  }
  if (rows_ != nullptr) {
    OkOrThrow(rows_->Append(RowOf(step_, layers_, counts)));
    shares_.push_back(shares);
  }
  const bool tells = step_ == first_step_ || step_ == flags_.steps || step_ % flags_.log_every == 0;
  return tells ? Describe(layers_, shares) : "";
}

void ExpertLoads::WritePicture() const {
  if (rows_ == nullptr || shares_.empty()) return;
  std::vector<int64_t> experts;
  for (const nn::Moe* layer : layers_) experts.push_back(layer->config().num_experts);
  const auto file = ValueOrThrow(LineFile::Create(flags_.out + "/expert_loads.svg"));
  OkOrThrow(file->Append(ExpertPicture(shares_, experts, first_step_)));
}

}  // namespace apogee::driver
