// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowbit/adam8_step.h"

#include <cmath>

#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {

char* At(void* base, int64_t elements, DType dtype) {
  return base == nullptr ? nullptr : static_cast<char*>(base) + elements * DTypeSize(dtype);
}

// Sets lr sqrt(c2) / c1 and eps' = eps sqrt(c2) for the update in the form m / (sqrt(v) + eps'),
// which needs one division.
void SetStepSize(const Adam8Settings& s, int64_t step, Adam8Chunk& chunk) {
  const auto t = static_cast<double>(step);
  const double root2 = std::sqrt(1 - std::pow(s.betas[1], t));
  chunk.step_size = s.lr * root2 / (1 - std::pow(s.betas[0], t));
  chunk.eps = s.eps * root2;
}

void SetCodes(const ParamView& view, Adam8Chunk& chunk) {
  chunk.codes1 = view.state("state1").address<uint8_t>();
  chunk.codes2 = view.state("state2").address<uint8_t>();
  chunk.absmax1 = view.state("absmax1").raw();
  chunk.absmax2 = view.state("absmax2").raw();
}

// Appends one chunk per segment, because blocks are counted from the start of the logical tensor.
void AppendSegments(const ParamView& view, Adam8Chunk whole, std::vector<Adam8Chunk>& chunks) {
  int64_t local = 0;
  for (const Segment& segment : view.layout().segments()) {
    Adam8Chunk chunk = whole;
    chunk.first = segment.begin;
    chunk.n = segment.length;
    chunk.weight = At(whole.weight, local, view.compute_dtype());
    chunk.grad = static_cast<const char*>(whole.grad) + local * DTypeSize(whole.grad_dtype);
    chunk.working = At(whole.working, local, whole.working_dtype);
    chunk.codes1 = whole.codes1 + local;
    chunk.codes2 = whole.codes2 + local;
    chunks.push_back(chunk);
    local += segment.length;
  }
}

Adam8Args ArgsOf(const Adam8Settings& s, DType dtype, std::span<const Adam8Chunk> chunks) {
  return {dtype,   s.decay_kind(), s.lr * s.weight_decay, s.betas[0], s.betas[1], s.cuda,
          s.block, chunks};
}

AdamArgs::Chunk FullChunkOf(const Adam8Settings& s, const UpdateChunk& tensors,
                            const ParamView& view, DecayKind decay_kind) {
  const auto t = static_cast<double>(view.step());
  return {{tensors, {view.state("state1").raw(), view.state("state2").raw()}},
          {{.decay_kind = decay_kind,
            .decay = s.lr * s.weight_decay,
            .beta1 = s.betas[0],
            .beta2 = s.betas[1],
            .eps = s.eps,
            .step_size = s.lr / (1 - std::pow(s.betas[0], t)),
            .root_scale = 1 / std::sqrt(1 - std::pow(s.betas[1], t))}}};
}

bool IsSame(const GradFactor& a, const GradFactor& b) {
  return a.factor() == b.factor() && a.gate() == b.gate();
}

// Updates parameters with f32 states, with one kernel call for neighbours of equal gradient scale.
void FullUpdate(const Adam8Settings& s, std::span<const Adam8Param> params, DType dtype) {
  std::vector<AdamArgs::Chunk> chunks;
  for (size_t i = 0; i < params.size(); ++i) {
    const ActiveParam& param = *params[i].param;
    if (param.view->compute_dtype() == dtype &&
        !s.UsesCodes(param.view->layout().logical_shape().numel())) {
      chunks.push_back(FullChunkOf(s, UpdateChunkOf(param), *param.view, s.decay_kind()));
    }
    const bool flush =
        i + 1 == params.size() || !IsSame(params[i + 1].grad_scale, params[i].grad_scale);
    if (!flush || chunks.empty()) continue;
    const DeviceContext& context = *param.grad.context();
    OptimKernelsFor(context).adam(context, {dtype, params[i].grad_scale, chunks});
    chunks.clear();
  }
}

void CodesUpdate(const Adam8Settings& s, std::span<const Adam8Param> params, DType dtype) {
  std::vector<Adam8Chunk> chunks;
  for (const Adam8Param& p : params) {
    ParamView& view = *p.param->view;
    if (view.compute_dtype() != dtype || !s.UsesCodes(view.layout().logical_shape().numel()))
      continue;
    Adam8Chunk chunk = MakeUpdateChunk<Adam8Chunk>(*p.param);
    SetCodes(view, chunk);
    SetStepSize(s, view.step(), chunk);
    chunk.grad_scale = p.grad_scale;
    if (p.new_scales.defined()) {
      chunk.new_absmax1 = p.new_scales.raw();
      chunk.new_absmax2 = At(p.new_scales.raw(), p.new_scales.numel() / 2, dtype);
    }
    AppendSegments(view, chunk, chunks);
  }
  if (chunks.empty()) return;
  const DeviceContext& context = *params[0].param->grad.context();
  OptimKernelsFor(context).adam8(context, ArgsOf(s, dtype, chunks));
  for (const Adam8Param& p : params) {
    if (p.param->view->compute_dtype() != dtype || !p.new_scales.defined()) continue;
    const int64_t blocks = p.new_scales.numel() / 2;
    p.param->view->state("absmax1").CopyFrom(p.new_scales.Slice(0, 0, blocks));
    p.param->view->state("absmax2").CopyFrom(p.new_scales.Slice(0, blocks, blocks));
  }
}

}  // namespace

void CheckAdam8(const Adam8Settings& s, const std::string& kernel, OptionProblems& problems) {
  using internal::Concat;
  if (s.bits != 8 && s.bits != 32) problems.Add(Concat("bits is ", s.bits, ", must be 8 or 32"));
  if (s.block < 64 || s.block > 4096 || (s.block & (s.block - 1)) != 0) {
    problems.Add(Concat("block_size is ", s.block, ", must be a power of two from 64 to 4096"));
  }
  if (kernel != "cuda" && kernel != "cpu") {
    problems.Add(Concat("kernel is \"", kernel, "\", must be cuda or cpu"));
  }
}

void AppendAdam8Specs(const Adam8Settings& s, int64_t numel, const std::optional<Shape>& low_rank,
                      std::vector<StateSpec>& specs) {
  const bool codes = s.UsesCodes(numel);
  const Shape shape = low_rank.value_or(Shape{});
  for (const char* name : {"state1", "state2"}) {
    if (low_rank) {
      specs.push_back({name, codes ? StateKind::kLowRankCodes : StateKind::kLowRank, shape});
    } else {
      specs.push_back({name, codes ? StateKind::kCodes : StateKind::kElementwise});
    }
  }
  if (!codes) return;
  for (const char* name : {"absmax1", "absmax2"}) {
    specs.push_back({name, StateKind::kBlockScale, BlockScaleShape(numel, s.block)});
  }
}

bool NeedsAbsMaxPhase(const Adam8Settings& s, const ParamView& view) {
  if (!s.UsesCodes(view.layout().logical_shape().numel())) return false;
  return s.block == 0 || (view.sharded() && view.layout().cut_multiple() % s.block != 0);
}

int64_t NumAbsMax(const Adam8Settings& s, const ParamView& view) {
  return 2 * NumBlocks(view.layout().logical_shape().numel(), s.block);
}

Tensor Adam8AbsMax(const Adam8Settings& s, const ActiveParam& param, const GradFactor& grad_scale) {
  ParamView& view = *param.view;
  const DeviceContext& context = *param.grad.context();
  const DType dtype = view.compute_dtype();
  const int64_t count = NumAbsMax(s, view);
  Tensor maxima = Tensor::Zeros({count}, dtype, param.grad.context(), MemoryCategory::kWorkspace);
  Adam8Chunk chunk = MakeUpdateChunk<Adam8Chunk>(param);
  SetCodes(view, chunk);
  chunk.grad_scale = grad_scale;
  chunk.new_absmax1 = maxima.raw();
  chunk.new_absmax2 = At(maxima.raw(), count / 2, dtype);
  std::vector<Adam8Chunk> chunks;
  AppendSegments(view, chunk, chunks);
  OptimKernelsFor(context).adam8_absmax(context, ArgsOf(s, dtype, chunks));
  return maxima;
}

void Adam8Update(const Adam8Settings& s, std::span<const Adam8Param> params) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    FullUpdate(s, params, dtype);
    CodesUpdate(s, params, dtype);
  }
}

Tensor Adam8LowRankStep(const Adam8Settings& s, ParamView& view, const Tensor& grad,
                        const GradFactor& grad_scale) {
  const DType dtype = grad.dtype();
  const DeviceContext& context = *grad.context();
  Tensor update = Tensor::Zeros(grad.shape(), dtype, grad.context(), MemoryCategory::kWorkspace);
  const UpdateChunk shared{update.raw(), grad.raw(), dtype, nullptr, dtype, grad.numel()};
  if (!s.UsesCodes(grad.numel())) {
    const AdamArgs::Chunk chunk = FullChunkOf(s, shared, view, DecayKind::kNone);
    OptimKernelsFor(context).adam(context, {dtype, grad_scale, {&chunk, 1}});
    return update;
  }
  Adam8Chunk chunk{};
  static_cast<UpdateChunk&>(chunk) = shared;
  SetCodes(view, chunk);
  SetStepSize(s, view.step(), chunk);
  chunk.grad_scale = grad_scale;
  Adam8Args args = ArgsOf(s, dtype, {&chunk, 1});
  args.decay_kind = DecayKind::kNone;
  if (s.block != 0) {
    OptimKernelsFor(context).adam8(context, args);
    return update;
  }
  // The whole tensor is one block, worked on in pieces: its new scale must be known first.
  Tensor maxima = Tensor::Zeros({2}, dtype, grad.context(), MemoryCategory::kWorkspace);
  chunk.new_absmax1 = maxima.raw();
  chunk.new_absmax2 = At(maxima.raw(), 1, dtype);
  OptimKernelsFor(context).adam8_absmax(context, args);
  OptimKernelsFor(context).adam8(context, args);
  view.state("absmax1").CopyFrom(maxima.Slice(0, 0, 1));
  view.state("absmax2").CopyFrom(maxima.Slice(0, 1, 1));
  return update;
}

}  // namespace apogee::optim
