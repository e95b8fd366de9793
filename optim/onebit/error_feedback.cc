// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/onebit/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apogee/optim/core/kernels.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::optim {
namespace {

constexpr const char* kWorkerError = "worker_error";
constexpr const char* kServerError = "server_error";
// A second moment this far below the mean of its tensor comes from rounding errors.
constexpr double kNoise = 1e-12;

}  // namespace

void ErrorFeedback::SetMask(const std::string& parameter, const Tensor& mask) {
  APOGEE_CHECK(
      mask.dtype() == DType::kU8 || mask.dtype() == DType::kF32 || mask.dtype() == DType::kF64,
      "momentum mask of \"", parameter, "\": must be u8, f32 or f64, got ",
      DTypeName(mask.dtype()));
  masks_[parameter] = mask;
  ForgetMasks();
}

Tensor ErrorFeedback::UserMask(const ParamView& view) const {
  const auto found = masks_.find(view.name());
  if (found == masks_.end()) return {};
  return view.CutToLayout(found->second.Contiguous(), Layout(view.layout().logical_shape()));
}

const Tensor& ErrorFeedback::LiveOf(const ParamView& view,
                                    const comm::CompressedAllReduce& reduce) {
  const auto found = live_.find(view.name());
  if (found != live_.end()) return found->second;
  const Tensor squares = view.state("exp_avg_sq");
  const DeviceContext& context = *squares.context();
  NormChunk sum{squares.raw(), squares.dtype(), view.layout().local_numel(), 0};
  OptimKernelsFor(context).grad_norm(context, {NormKind::kL1, {&sum, 1}});
  const double mean = sum.result / static_cast<double>(std::max<int64_t>(1, sum.n));
  // If a square has overflowed, the mean is infinite. Only that element must be masked, not all
  // others.
  Tensor bits = reduce.PackLive(squares, std::isfinite(mean) ? kNoise * mean : 0);
  // This happens once per phase, so the bits may be copied to the host.
  std::vector<uint8_t> live = bits.ToVector<uint8_t>();
  if (const Tensor mask = UserMask(view); mask.defined()) {
    const std::vector<uint8_t> own = reduce.PackLive(mask).ToVector<uint8_t>();
    for (size_t b = 0; b < live.size(); ++b) live[b] &= own[b];
    bits.SetValues(live);
  }
  const int64_t n = view.value().numel();
  const bool all =
      std::all_of(live.begin(), live.begin() + n / 8, [](uint8_t b) { return b == 255; }) &&
      (n % 8 == 0 || live[static_cast<size_t>(n / 8)] == (1 << (n % 8)) - 1);
  return live_[view.name()] = all ? Tensor() : bits;
}

size_t ErrorFeedback::AgreeOnBad(size_t bad, size_t count, const ContextPtr& context) const {
  if (ranks_.statistics == nullptr) return bad;
  // Jobs are the same on all ranks. The first bad job has the largest `count - bad`.
  const Tensor left = Tensor::Full({1}, DType::kF64, static_cast<double>(count - bad), context);
  ranks_.statistics->AllReduce(left, comm::ReduceOp::kMax);
  return count - static_cast<size_t>(left.Item());
}

std::string ErrorFeedback::Average(std::span<const FeedbackJob> jobs,
                                   const comm::CompressionOptions& options) {
  if (size() == 1) {
    for (const FeedbackJob& job : jobs) ApplyMask(job, options);
    return "";
  }
  if (jobs.empty()) return "";
  const comm::CompressedAllReduce reduce(ranks_.group, options);
  // f64 parameters have separate messages. The order is the same on all ranks.
  std::vector<comm::CompressedAllReduce::Sent> messages;
  size_t bad = jobs.size();
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    std::vector<comm::CompressedTensor> tensors;
    std::vector<size_t> owners;
    for (size_t k = 0; k < jobs.size(); ++k) {
      ParamView& view = *jobs[k].view;
      if (view.compute_dtype() != dtype) continue;
      MakeErrors(view, options);
      tensors.push_back({jobs[k].value, view.state(kWorkerError), view.state(kServerError),
                         options.deepspeed ? Tensor() : LiveOf(view, reduce),
                         // Whole parameters, which all tensor-parallel ranks hold, do not share a
                         // scale with parts, which differ between these ranks.
                         view.layout().is_whole() ? 0 : 1});
      owners.push_back(k);
    }
    messages.push_back(reduce.Send(tensors));
    if (const auto found = messages.back().nonfinite) bad = std::min(bad, owners[*found]);
  }
  // From here on values and errors change, on all ranks or on none.
  bad = AgreeOnBad(bad, jobs.size(), jobs[0].value.context());
  if (bad < jobs.size()) return jobs[bad].view->name();
  for (const auto& message : messages) reduce.Finish(message);
  return "";
}

void ErrorFeedback::ApplyMask(const FeedbackJob& job, const comm::CompressionOptions& options) {
  if (options.deepspeed) return;
  const Tensor& live = LiveOf(*job.view, comm::CompressedAllReduce(ranks_.group, options));
  if (live.defined()) comm::CompressedAllReduce::Clear(job.value, live);
}

void ErrorFeedback::ApplyUserMask(const FeedbackJob& job) const {
  const Tensor mask = UserMask(*job.view);
  if (mask.defined()) job.value.CopyFrom(ops::Mul(job.value, mask.To(job.value.dtype())));
}

void ErrorFeedback::AppendSpecs(const ParamView& view, const comm::CompressionOptions& options,
                                std::vector<StateSpec>& specs) const {
  if (size() == 1) return;
  const comm::CompressedAllReduce reduce(ranks_.group, options);
  const int64_t n = view.value().numel();
  specs.push_back({kWorkerError, StateKind::kPerRank, {reduce.PaddedNumel(n)}, true});
  specs.push_back({kServerError, StateKind::kPerRank, {reduce.ChunkNumel(n)}, true});
}

void ErrorFeedback::MakeErrors(ParamView& view, const comm::CompressionOptions& options) const {
  std::vector<StateSpec> specs;
  AppendSpecs(view, options, specs);
  for (const StateSpec& spec : specs) view.AddState(spec);
}

void ErrorFeedback::DropErrors(ParamView& view) {
  std::vector<NamedState> kept = view.states();
  std::erase_if(kept, [](const NamedState& state) { return state.kind == StateKind::kPerRank; });
  view.ReplaceStates(std::move(kept));
}

}  // namespace apogee::optim
