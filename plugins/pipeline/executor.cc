// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/pipeline/executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/head/deferred_logits.h"
#include "apogee/plugins/loss_normalizer.h"

namespace apogee::pipeline {
namespace {

using Kind = PipelineOp::Kind;

constexpr int64_t kHeaderSize = 3 + 8;  // dtype, draws, rank and up to 8 dims

// Joins parts along the first dim. A sealed tensor stays sealed.
Tensor Join(const std::vector<Tensor>& parts) {
  std::vector<int64_t> dims(parts[0].shape().dims().begin(), parts[0].shape().dims().end());
  dims[0] = 0;
  for (const Tensor& part : parts) dims[0] += part.size(0);
  const Tensor whole = Tensor::Empty(Shape(dims), parts[0].dtype(), parts[0].context());
  int64_t at = 0;
  for (const Tensor& part : parts) {
    whole.Slice(0, at, part.size(0)).CopyFrom(part.Unsealed());
    at += part.size(0);
  }
  return parts[0].is_sealed() ? whole.Sealed(parts[0].why_sealed()) : whole;
}

}  // namespace

struct Executor::Running {
  const ExecutorCall& call;
  PipelineShape shape;
  PipelineSchedule schedule;
  std::vector<int64_t> begin;  // begin of each micro-batch, and the end of the last
  uint64_t first_stream = 0;
  int64_t first_sample = 0;  // the batch's, for random masks
  bool training_mode = false;
  std::optional<Inbox> inbox;
  std::map<Message, Tensor> here;  // messages between two parts of this stage
  std::deque<std::shared_ptr<comm::Work>> sends;
  std::map<std::pair<int, int>, Slot> slots;                    // by chunk and micro-batch
  std::vector<std::shared_ptr<autograd::Documents>> documents;  // of micro-batches; may be empty
  // For the last part:
  std::vector<Tensor> losses;
  bool raw_losses = false;  // losses are means of micro-batches, not addends
  std::vector<Tensor> outputs;
  // Of this stage's parts: the micro-batch and its auxiliary loss.
  std::vector<std::pair<int, Tensor>> auxiliaries;

  int64_t size(int micro) const {
    return begin[static_cast<size_t>(micro) + 1] - begin[static_cast<size_t>(micro)];
  }
  Tensor Part(const Tensor& batch, int micro) const {
    return batch.Slice(0, begin[static_cast<size_t>(micro)], size(micro));
  }
  double share(int micro) const {
    return static_cast<double>(size(micro)) / static_cast<double>(begin.back());
  }
  double weight(int micro) const { return raw_losses ? share(micro) : 1; }
  OutputKey Key(int part, int micro) const {
    const std::span<const int64_t> batch = call.inputs.shape().dims();
    std::vector<int64_t> dims(batch.begin(), batch.end());
    dims[0] = size(micro);
    return {part, dims, training_mode};
  }
};

Executor::Executor(const ExecutorParts& parts)
    : parts_(parts), stage_(parts.group == nullptr ? 0 : parts.group->rank()) {
  std::map<const autograd::Parameter*, int> num_uses;
  for (int chunk = 0; chunk < parts_.shape.num_chunks; ++chunk) {
    auto& own = chunk_parameters_.emplace_back();
    for (const nn::Piece& piece : parts_.cut.Pieces(parts_.shape.PartOf(stage_, chunk))) {
      for (const auto& parameter : ParametersOf(piece)) own.insert(parameter.get());
    }
    for (const autograd::Parameter* parameter : own) ++num_uses[parameter];
  }
  for (auto& own : chunk_parameters_) {
    std::erase_if(own, [&](const autograd::Parameter* parameter) {
      return num_uses.at(parameter) > 1 || parts_.cut.HoldersOf(*parameter).size() > 1;
    });
  }
}

int Executor::ChunkOf(const autograd::Parameter& parameter) const {
  const auto found = std::ranges::find_if(
      chunk_parameters_, [&](const auto& own) { return own.contains(&parameter); });
  return found == chunk_parameters_.end() ? -1
                                          : static_cast<int>(found - chunk_parameters_.begin());
}

PipelineResult Executor::Run(const ExecutorCall& call) {
  const int64_t samples = call.inputs.size(0);
  Running run{.call = call, .shape = parts_.shape};
  run.shape.num_micros = call.num_micros;
  run.shape.training = call.passes != nullptr;
  run.schedule = MakeSchedule(run.shape);
  // Larger micro-batches come first.
  for (int64_t m = 0; m <= call.num_micros; ++m) {
    const int64_t larger = std::min(m, samples % call.num_micros);
    run.begin.push_back(m * (samples / call.num_micros) + larger);
  }
  CheckStarts(call);
  for (int m = 0; call.starts.defined() && m < call.num_micros; ++m) {
    run.documents.push_back(std::make_shared<autograd::Documents>(run.Part(call.starts, m)));
  }
  Generator& generator = parts_.model.generator();
  run.training_mode = parts_.model.is_training();
  if (run.training_mode) parts_.model.BeginBatch(call.inputs);
  run.first_stream = generator.next_stream();
  const std::optional<SamplePlace> place = SamplePlaceOf(call.inputs);
  run.first_sample = place ? place->first : call.first_sample;
  run.inbox.emplace(run.shape, run.schedule, stage_, parts_.group,
                    [this, &run](const Message& message, int from, bool may_wait) {
                      return BufferFor(run, message, from, may_wait);
                    });
  const auto normalizing =
      call.normalizer == nullptr
          ? nullptr
          : call.normalizer->BeginCall(call.criterion != nullptr ? call.targets : Tensor(),
                                       run.begin, run.shape.training);
  run.losses.resize(static_cast<size_t>(call.num_micros));
  run.outputs.resize(static_cast<size_t>(call.num_micros));
  const autograd::GradModeGuard grad_mode(run.shape.training);
  const std::vector<PipelineOp>& ops = run.schedule[static_cast<size_t>(stage_)];
  for (size_t i = 0; i < ops.size(); ++i) {
    if (i + 1 < ops.size()) ExpectFor(run, ops[i + 1]);
    RunOp(run, ops[i]);
  }
  ++num_runs_;
  return Finish(run);
}

void Executor::RunOp(Running& run, const PipelineOp& op) {
  if (op.kind == Kind::kForward) return Forward(run, op);
  if (op.kind == Kind::kBackward) return Backward(run, op);
  Weights(run, op);
}

TraceSpan Executor::Span(const PipelineOp& op) const {
  constexpr PipelineKind kKinds[] = {PipelineKind::kForward, PipelineKind::kBackward,
                                     PipelineKind::kWeightBackward};
  return TracePipeline(parts_.lane, kKinds[static_cast<size_t>(op.kind)],
                       {.step = num_runs_, .micro_batch = op.micro, .chunk = op.chunk});
}

void Executor::Forward(Running& run, const PipelineOp& op) {
  const int part = run.shape.PartOf(stage_, op.chunk);
  Slot slot;
  const Tensor inputs = run.Part(run.call.inputs, op.micro);
  Tensor x = part == 0 ? inputs : Take(run, {.part = part, .micro = op.micro});
  const TraceSpan span = Span(op);
  if (part == 0 && prepare_) x = prepare_(x);
  if (run.shape.training && part > 0) {
    slot.input = std::make_shared<autograd::Parameter>("pipeline input", std::move(x));
    x = slot.input->value();
    x.storage()->set_category(MemoryCategory::kActivation);  // it is not a weight
  }
  Generator& generator = parts_.model.generator();
  const int64_t drawn = part == 0 ? 0 : outputs_.at(run.Key(part - 1, op.micro)).draws;
  generator.set_next_stream(run.first_stream + static_cast<uint64_t>(drawn));
  generator.set_first_sample(run.first_sample + run.begin[static_cast<size_t>(op.micro)]);
  {
    const auto micro = static_cast<size_t>(op.micro);
    const autograd::DocumentsGuard documents(run.documents.empty() ? nullptr
                                                                   : run.documents[micro]);
    for (const nn::Piece& piece : parts_.cut.Pieces(part)) x = piece.forward(x);
  }
  outputs_[run.Key(part, op.micro)] = {
      .shape = x.shape(),
      .dtype = x.dtype(),
      .draws = static_cast<int64_t>(generator.next_stream() - run.first_stream)};
  if (part == run.shape.num_parts() - 1) {
    Loss(run, op, complete_ ? complete_(x, inputs) : x, slot);
  } else {
    APOGEE_CHECK(IsFloat(x.dtype()) && x.rank() >= 1 && x.rank() <= 8, "pipeline: piece \"",
                 parts_.cut.Pieces(part).back().name, "\" outputs ", DTypeName(x.dtype()), " ",
                 x.shape(), "; the next stage needs a floating-point tensor of 1 to 8 dims");
    Give(run, {.part = part + 1, .micro = op.micro}, x.Detach());
    slot.output = std::move(x);
  }
  if (!run.shape.training) return;
  if (run.call.auxiliary != nullptr) AuxiliaryLoss(run, op, slot);
  run.slots[{op.chunk, op.micro}] = std::move(slot);
}

void Executor::AuxiliaryLoss(Running& run, const PipelineOp& op, Slot& slot) const {
  std::vector<nn::Module*> modules;
  for (const nn::Piece& piece : parts_.cut.Pieces(run.shape.PartOf(stage_, op.chunk))) {
    modules.insert(modules.end(), piece.modules.begin(), piece.modules.end());
  }
  slot.auxiliary = run.call.auxiliary(modules);
  if (!slot.auxiliary.defined()) return;
  CheckLoss("execute_pipeline: the auxiliary loss", slot.auxiliary);
  run.auxiliaries.emplace_back(op.micro, slot.auxiliary.Detach());
}

void Executor::Loss(Running& run, const PipelineOp& op, const Tensor& output, Slot& slot) {
  const auto micro = static_cast<size_t>(op.micro);
  APOGEE_CHECK(!run.call.return_outputs || !autograd::IsDeferred(output),
               "execute_pipeline: return_outputs needs the model's logits, which are not computed "
               "in training with head_chunks; leave return_outputs out, or set head_chunks = 0");
  if (run.call.return_outputs) run.outputs[micro] = output.Detach();
  if (run.call.criterion == nullptr) return;
  LossNormalizer* const normalizer = run.call.normalizer;
  const int64_t before = normalizer == nullptr ? 0 : normalizer->num_losses();
  if (normalizer != nullptr) {
    const bool drew = parts_.model.generator().next_stream() != run.first_stream;
    const bool placed = SamplePlaceOf(run.call.inputs).has_value();
    normalizer->BeginLoss(op.micro, run.training_mode && drew && !placed);
  }
  slot.output = run.call.criterion(output, run.Part(run.call.targets, op.micro));
  run.raw_losses = normalizer == nullptr || normalizer->num_losses() == before;
  CheckLoss("execute_pipeline: the criterion's loss", slot.output);
  run.losses[micro] = slot.output.Detach();
}

void Executor::Backward(Running& run, const PipelineOp& op) {
  const int part = run.shape.PartOf(stage_, op.chunk);
  Slot& slot = run.slots.at({op.chunk, op.micro});
  Tensor grad;
  if (part == run.shape.num_parts() - 1) {
    grad = Tensor::Full(slot.output.shape(), slot.output.dtype(),
                        run.call.loss_scale * run.weight(op.micro), slot.output.context());
  } else {
    grad = Take(run, {.part = part, .micro = op.micro, .is_gradient = true});
  }
  const TraceSpan span = Span(op);
  const bool splits = run.shape.splits_backward();
  RunPass(run, op, !splits, [&] {
    std::vector<Tensor> roots, grads;
    const auto add = [&](Tensor& root, const Tensor& root_grad) {
      const Tensor taken = std::exchange(root, {});
      if (!taken.defined() || !autograd::NeedsGrad({taken})) return;
      roots.push_back(taken);
      grads.push_back(root_grad);
    };
    if (slot.auxiliary.defined()) {
      const double scale = run.call.loss_scale * run.share(op.micro);
      add(slot.auxiliary, Tensor::Full(slot.auxiliary.shape(), slot.auxiliary.dtype(), scale,
                                       slot.auxiliary.context()));
    }
    add(slot.output, grad);
    if (roots.empty()) return;  // this part and those before it train nothing
    autograd::Backward(roots, grads, {.deferred = splits ? &slot.deferred : nullptr});
  });
  if (part > 0) {
    const autograd::Parameter& input = *slot.input;
    Give(run, {.part = part - 1, .micro = op.micro, .is_gradient = true},
         input.has_grad() ? input.grad().Contiguous()
                          : Tensor::Zeros(input.shape(), input.dtype(), input.data().context()));
  }
  slot.input = nullptr;
  if (!splits) run.slots.erase({op.chunk, op.micro});
}

void Executor::Weights(Running& run, const PipelineOp& op) {
  Slot& slot = run.slots.at({op.chunk, op.micro});
  const TraceSpan span = Span(op);
  RunPass(run, op, true, [&] { slot.deferred.Run(); });
  run.slots.erase({op.chunk, op.micro});
}

// If sums are kept on shards, each micro-batch's complete gradients are reduced at once. Otherwise
// the last micro-batch reduces its gradients together with those the others left.
void Executor::RunPass(const Running& run, const PipelineOp& op, bool completes_chunk,
                       const std::function<void()>& backward) const {
  BackwardPasses& passes = *run.call.passes;
  const bool last = op.micro == run.shape.num_micros - 1;
  const bool reduce = run.call.reduce && completes_chunk && (last || passes.ReducesEachPass());
  const auto& own = chunk_parameters_[static_cast<size_t>(op.chunk)];
  passes.RunPass(backward, {.reduce = reduce, .takes_part = [&own](const autograd::Parameter& p) {
                              return own.contains(&p);
                            }});
}

void Executor::ExpectFor(Running& run, const PipelineOp& op) {
  const int part = run.shape.PartOf(stage_, op.chunk);
  const Message message{.part = part, .micro = op.micro, .is_gradient = op.kind != Kind::kForward};
  if (run.inbox->ComesFromElsewhere(message) && op.kind != Kind::kWeights) {
    run.inbox->Expect(message);
  }
}

Tensor Executor::Take(Running& run, const Message& message) {
  if (run.inbox->ComesFromElsewhere(message)) return run.inbox->Take(message);
  return run.here.extract(message).mapped();
}

void Executor::Give(Running& run, const Message& message, const Tensor& tensor) {
  const int to = run.shape.StageOf(message.part);
  if (to == stage_) {
    run.here[message] = tensor;
    return;
  }
  if (!message.is_gradient) SendHeader(run, run.Key(message.part - 1, message.micro), to);
  Send(run, tensor.Contiguous(), to);
}

void Executor::Send(Running& run, const Tensor& tensor, int stage) {
  run.sends.push_back(parts_.group->SendAsync(tensor, stage));
  // Sent tensors need not be kept.
  while (!run.sends.empty() && run.sends.front()->IsDone()) {
    run.sends.front()->Wait();
    run.sends.pop_front();
  }
}

Tensor Executor::BufferFor(Running& run, const Message& message, int from, bool may_wait) {
  const OutputKey key =
      run.Key(message.is_gradient ? message.part : message.part - 1, message.micro);
  if (!outputs_.contains(key)) {
    if (!may_wait) return {};
    ReceiveHeader(key, from);
  }
  const Output& output = outputs_.at(key);
  return Tensor::Empty(output.shape, output.dtype, parts_.model.Parameters()[0]->context());
}

void Executor::SendHeader(Running& run, const OutputKey& key, int stage) {
  if (!headers_sent_.insert(key).second) return;
  const Output& output = outputs_.at(key);
  std::vector<int64_t> header = {static_cast<int64_t>(output.dtype), output.draws,
                                 output.shape.rank()};
  for (int64_t dim = 0; dim < output.shape.rank(); ++dim) header.push_back(output.shape[dim]);
  header.resize(kHeaderSize, 0);
  Send(run,
       Tensor::FromVector<int64_t>(header, {kHeaderSize}, parts_.model.Parameters()[0]->context()),
       stage);
}

void Executor::ReceiveHeader(const OutputKey& key, int from) {
  const Tensor buffer =
      Tensor::Empty({kHeaderSize}, DType::kI64, parts_.model.Parameters()[0]->context());
  parts_.group->Recv(buffer, from);
  const std::vector<int64_t> header = buffer.ToVector<int64_t>();
  std::vector<int64_t> dims(header.begin() + 3, header.begin() + 3 + header[2]);
  outputs_[key] = {
      .shape = Shape(dims), .dtype = static_cast<DType>(header[0]), .draws = header[1]};
}

// Tells every stage the loss and the number of random streams drawn in all.
PipelineResult Executor::Finish(Running& run) {
  for (const auto& send : run.sends) send->Wait();
  const int last_part = run.shape.num_parts() - 1;
  const int root = run.shape.StageOf(last_part);
  double loss = std::numeric_limits<double>::quiet_NaN();
  double draws = 0;
  DType dtype = DType::kF32;
  PipelineResult result;
  if (stage_ == root) {
    draws = static_cast<double>(outputs_.at(run.Key(last_part, 0)).draws);
    if (run.call.criterion != nullptr) {
      loss = 0;
      for (int m = 0; m < run.shape.num_micros; ++m) {
        loss += run.weight(m) * run.losses[static_cast<size_t>(m)].Item();
      }
      dtype = run.losses[0].dtype();
    }
    if (run.call.return_outputs) result.outputs = Join(run.outputs);
  }
  const ContextPtr context = parts_.model.Parameters()[0]->context();
  const Tensor end = Tensor::FromVector<double>(
      {loss, draws, static_cast<double>(dtype), run.raw_losses ? 1.0 : 0.0}, {4}, context);
  if (parts_.group != nullptr) parts_.group->Broadcast(end, root);
  const std::vector<double> values = end.ToVector<double>();
  if (run.call.normalizer != nullptr && values[3] != 0) run.call.normalizer->NoteRawCall();
  parts_.model.generator().set_next_stream(run.first_stream + static_cast<uint64_t>(values[1]));
  double all = values[0];
  if (run.call.auxiliary != nullptr && run.shape.training) {
    double own = 0;
    for (const auto& [micro, auxiliary] : run.auxiliaries) {
      own += run.share(micro) * auxiliary.Item();
    }
    const Tensor sum = Tensor::Full({}, DType::kF64, own, context);
    if (parts_.group != nullptr) parts_.group->AllReduce(sum);
    all += sum.Item();
  }
  if (run.call.criterion != nullptr) {
    result.loss = Tensor::Full({}, static_cast<DType>(values[2]), all, context);
  }
  return result;
}

}  // namespace apogee::pipeline
