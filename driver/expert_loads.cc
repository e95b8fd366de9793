// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>

#include "apogee/booster/metrics/step_rows.h"
#include "apogee/core/text/text.h"
#include "apogee/driver/records/expert_picture.h"
#include "apogee/driver/reports.h"

namespace apogee::driver {
namespace {

size_t NumExperts(const nn::Moe* layer) { return static_cast<size_t>(layer->config().num_experts); }

std::string RowOf(int64_t step, const std::vector<nn::Moe*>& layers,
                  const std::vector<double>& counts) {
  std::string row = "{\"step\":" + std::to_string(step) + ",\"loads\":[";
  auto next = counts.begin();
  for (const nn::Moe* layer : layers) {
    std::vector<std::string> each;
    for (size_t e = 0; e < NumExperts(layer); ++e) {
      each.push_back(std::to_string(std::llround(*next++)));
    }
    row += (layer == layers[0] ? "[" : ",[") + JoinTexts(each, ",") + "]";
  }
  return row + "]}\n";
}

// " layer 1 0.71 to 1.29".
std::string Describe(size_t layer, std::span<const double> loads) {
  const auto [least, most] = std::ranges::minmax(loads);
  char text[64];
  std::snprintf(text, sizeof(text), " layer %zu %.2f to %.2f", layer, least, most);
  return text;
}

}  // namespace

ExpertLoads::ExpertLoads(const Rank& rank, const RunFlags& flags, nn::Module& model,
                         const Plugin& plugin, const TextRun& run)
    : rank_(rank),
      flags_(flags),
      layers_(nn::MoeLayers(model)),
      copies_(static_cast<double>(rank.world.size()) / plugin.data_size()) {
  std::vector<size_t> experts;
  for (const nn::Moe* layer : layers_) {
    experts.push_back(NumExperts(layer));
    counts_.resize(counts_.size() + experts.back());
  }
  if (rank.world.rank() != 0 || flags.out.empty() || rank.world.context()->is_dry()) return;
  rows_ = ValueOrThrow(OpenStepRows(flags.out + "/expert_loads.jsonl", run.step())).file;
  picture_ = std::make_unique<ExpertPicture>(std::move(experts));
}

ExpertLoads::~ExpertLoads() = default;

void ExpertLoads::Count() {
  auto next = counts_.begin();
  for (const nn::Moe* layer : layers_) {
    for (const int64_t count : layer->record().counts) *next++ += static_cast<double>(count);
  }
}

void ExpertLoads::AfterStep(TextRun& run) {
  if (layers_.empty() || rank_.world.context()->is_dry()) return;
  std::vector<double> counts = SumOverRanks(rank_.world, counts_);
  std::ranges::fill(counts_, 0.0);
  if (rank_.world.rank() != 0) return;
  for (double& count : counts) count /= copies_;
  if (rows_ != nullptr) OkOrThrow(rows_->Append(RowOf(run.step(), layers_, counts)));

  std::string text = "loads of experts:";
  size_t begin = 0;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const std::span loads = std::span(counts).subspan(begin, NumExperts(layers_[l]));
    double even = 0;
    for (const double count : loads) even += count / static_cast<double>(loads.size());
    for (double& load : loads) load = even == 0 ? 0 : load / even;
    text += (l == 0 ? "" : ",") + Describe(l, loads);
    begin += loads.size();
  }
  if (picture_ != nullptr) picture_->Add(counts);
  const bool tells = run.step() == flags_.steps || run.step() % flags_.log_every == 0;
  if (tells || run.step() == 1) run.Note(text + " of an even one");
}

void ExpertLoads::WritePicture(int64_t last_step) const {
  if (picture_ == nullptr) return;
  const std::string svg = picture_->Draw(last_step);
  if (!svg.empty()) OkOrThrow(LineFile::Replace(flags_.out + "/expert_loads.svg", svg));
}

}  // namespace apogee::driver
