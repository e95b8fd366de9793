// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/tensor_parallel.h"

#include <algorithm>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/head_loss.h"
#include "apogee/nn/moe/experts.h"
#include "apogee/nn/parallel/convolution.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/nn/parallel/linear.h"
#include "apogee/nn/parallel/norm.h"
#include "apogee/nn/parallel/plan_match.h"
#include "apogee/nn/parallel/recurrent.h"
#include "apogee/nn/parallel/sequence_functions.h"
#include "apogee/nn/parallel/vocab_parallel.h"
#include "apogee/nn/quantized/quantized_weight.h"

namespace apogee::nn::parallel {
namespace {

using enum ParallelStyle;

// `copy`: the shared copy of x, as the module's input. Made inside the module, hooks around the
// module's part of backward would come between x and the copy, and layers could not share it.
// `group`: the ranks that add up the gradients of parameters that each has whole; null if they are
// added up later.
Tensor ColumnProduct(Linear& linear, const Tensor& copy, const comm::GroupPtr& group) {
  const Tensor x = InputOf(linear, copy, *linear.weight());
  const Tensor weight = autograd::ValueOf(linear.weight());
  if (linear.adapters().empty()) {
    const Tensor y = ColumnLinear(x, weight, autograd::ValueOf(linear.bias()),
                                  {.layout = linear.layout(),
                                   .activation = linear.activation(),
                                   .recompute_activation = linear.recompute_activation()});
    return CapLogits(y, linear.soft_cap());
  }
  const Tensor product =
      ColumnLinear(x, weight, linear.ProductBias(),
                   {.layout = linear.layout(), .out_dtype = ComputeDType(x.dtype())});
  // Without a group the tokens are those of whole sequences, which SharedInput has gathered.
  return linear.Finish(x, product,
                       {.share = [group](const Tensor& a) { return CopyToGroup(a, group); },
                        .wide_input_grad = true,
                        .tokens = group != nullptr ? linear.sequence_part() : SequencePart{}});
}

// `input`: this rank's columns. `cuts_tokens`: the result has this rank's tokens only.
Tensor RowProduct(Linear& linear, const Tensor& input, const comm::GroupPtr& group,
                  bool cuts_tokens) {
  const Tensor x = InputOf(linear, input, *linear.weight());
  const auto product = [&](const Tensor& bias, std::optional<DType> out_dtype) {
    const auto function = cuts_tokens ? RowParallelLinearOfTokens : RowParallelLinear;
    return function(x, autograd::ValueOf(linear.weight()), bias, group, linear.layout(), out_dtype);
  };
  if (linear.adapters().empty()) {
    const Tensor sum = product(autograd::ValueOf(linear.bias()), linear.out_dtype());
    return linear.activation() ? autograd::Activate(*linear.activation(), sum)
                               : CapLogits(sum, linear.soft_cap());
  }
  const int64_t width = x.size(-1);
  return linear.Finish(
      x, product(linear.ProductBias(), ComputeDType(x.dtype())),
      {.sum =
           [group, cuts_tokens, dtype = x.dtype()](const Tensor& low) {
             return cuts_tokens ? ReduceScatterSequence(low, group, low.dtype(), dtype)
                                : ReduceFromGroup(low, group);
           },
       .sum_squares = [group](const Tensor& squares) { group->AllReduce(squares); },
       .columns = {.first = group->rank() * width, .total = group->size() * width},
       .tokens = cuts_tokens ? SequencePart{} : linear.sequence_part()});
}

// This rank's part of a vocabulary of `words` entries.
ops::VocabPart PartOf(int64_t words, const comm::GroupPtr& group) {
  const int64_t part = (words + group->size() - 1) / group->size();
  return {.first = group->rank() * part, .vocab_size = words};
}

// The error of reading sharded logits outside of the loss that KeepLogitsCut returns.
std::string WhyCut(const ops::VocabPart& part, int64_t columns) {
  const int64_t end = std::min(part.first + columns, part.vocab_size);
  const std::string which = part.first < end
                                ? internal::Concat("columns ", part.first, " to ", end - 1)
                                : std::string("padding, none");
  return internal::Concat(
      "these logits are this rank's part of the vocabulary (", which, " of ", part.vocab_size,
      "): in training the model returns them so for the cross entropy given to boost; "
      "use boosted.criterion (from boost). Logits are whole in evaluation mode, and if boost "
      "is given another criterion or none");
}

SharedCopy::Function GatherOver(const comm::GroupPtr& group) {
  return [group](const Tensor& x) { return GatherSequence(x, group); };
}

}  // namespace

std::vector<std::string> PlanProblems(Module& model, const ParallelPlan& plan, int tp) {
  return PlanMatch(model, plan, tp).problems;
}

TensorParallel::TensorParallel(Module& model, ParallelPlan plan, comm::GroupPtr group,
                               const TensorParallelOptions& options)
    : model_(model), plan_(std::move(plan)), group_(std::move(group)), options_(options) {
  APOGEE_CHECK(group_ != nullptr, "tensor parallel: needs a group");
  PlanMatch match(model_, plan_, group_->size());
  std::string problems;
  for (const std::string& problem : match.problems) problems += "\n  " + problem;
  APOGEE_CHECK(problems.empty(), "tensor parallel: plan \"", plan_.name,
               "\" does not fit:", problems);
  shared_copy_ = std::make_shared<SharedCopy>(
      group_, options_.cut_sequence ? GatherOver(group_) : SharedCopy::Function());
  modules_ = std::move(match.modules);
  shards_ = std::move(match.shards);
  for (const auto& [module, rule] : modules_) {
    APOGEE_CHECK(
        rule->style != kExperts || !options_.cut_sequence, "tensor parallel: plan \"", plan_.name,
        "\" shards ", module->full_name(),
        ", the experts of a mixture, whose rows are no whole sequences; sequence "
        "parallelism of mode split_gather cuts these. Use sp_mode all_to_all or ring_attn");
    const auto* const conv = dynamic_cast<const Convolution*>(module);
    if (conv == nullptr) continue;
    cuts_channels_ = cuts_channels_ || rule->style == kColumn;
    APOGEE_CHECK(!options_.cut_sequence, "tensor parallel: plan \"", plan_.name, "\" shards ",
                 conv->full_name(),
                 ", a convolution, over its channels; sequence parallelism shards "
                 "the tokens of the same dim. Leave the convolution whole, or turn off sequence "
                 "parallelism");
  }
  output_ = match.output;
  for (const autograd::ParameterPtr& parameter : model_.Parameters()) {
    logical_shapes_[parameter.get()] = parameter->shape();
  }
  for (const auto& quantized : model_.QuantizedWeights()) {
    logical_shapes_[quantized->weight().get()] = quantized->weight()->shape();
    const auto shard = shards_.find(quantized->weight().get());
    if (shard == shards_.end()) continue;
    quantized_[quantized->stored().get()] = quantized;
    shards_[quantized->stored().get()] = shard->second;
  }
}

void TensorParallel::Apply(const std::function<void(autograd::Parameter&)>& before) {
  for (const autograd::ParameterPtr& parameter : model_.Parameters()) {
    if (before) before(*parameter);
    const TensorShard* shard = ShardOf(*parameter);
    if (shard == nullptr || !parameter->is_here()) continue;
    Tensor part = CutValue(*parameter);
    part.storage()->set_category(MemoryCategory::kParameter);
    const auto quantized = quantized_.find(parameter.get());
    if (quantized == quantized_.end()) {
      parameter->set_part(std::move(part));
      continue;
    }
    const Shape& whole = LogicalShape(*quantized->second->weight());
    quantized->second->SetPart(parallel::LayoutOf(*shard, whole, group_->rank(), group_->size()),
                               LocalShape(*shard, whole, group_->size()), part);
  }
  for (const auto& [module, rule] : modules_) Replace(*module, *rule);
}

bool TensorParallel::IsNamed(const Module& module) const {
  return std::ranges::find(modules_, &module, [](const auto& named) { return named.first; }) !=
         modules_.end();
}

const TensorShard* TensorParallel::ShardOf(const autograd::Parameter& parameter) const {
  const auto found = shards_.find(&parameter);
  return found == shards_.end() ? nullptr : &found->second;
}

const Shape& TensorParallel::LogicalShape(const autograd::Parameter& parameter) const {
  return logical_shapes_.at(&parameter);
}

Layout TensorParallel::LayoutOn(int rank, const autograd::Parameter& parameter) const {
  const TensorShard& shard = *ShardOf(parameter);
  const auto quantized = quantized_.find(&parameter);
  if (quantized == quantized_.end()) {
    return parallel::LayoutOf(shard, LogicalShape(parameter), rank, group_->size());
  }
  const QuantizedWeight& weight = *quantized->second;
  return weight.StoredLayout(
      parallel::LayoutOf(shard, LogicalShape(*weight.weight()), rank, group_->size()));
}

Tensor TensorParallel::CutValue(const autograd::Parameter& parameter) const {
  const Tensor whole = parameter.data();
  if (quantized_.contains(&parameter)) {
    return CutByLayout(whole, LayoutOn(group_->rank(), parameter));
  }
  return CutLocal(*ShardOf(parameter), whole, group_->rank(), group_->size());
}

Layout TensorParallel::LayoutOf(const autograd::Parameter& parameter) const {
  const Shape& logical = LogicalShape(parameter);
  if (ShardOf(parameter) != nullptr) return LayoutOn(group_->rank(), parameter);
  // A whole tensor is not sharded: any multiple of every block size of optimizer states will do.
  constexpr int64_t kNoCut = int64_t{1} << 40;
  return Layout(
      logical,
      {.segments = {{0, logical.numel()}}, .num_replicas = group_->size(), .cut_multiple = kNoCut});
}

Tensor TensorParallel::Whole(const autograd::Parameter& parameter) const {
  return Whole(parameter, parameter.data());
}

Tensor TensorParallel::Whole(const autograd::Parameter& parameter, const Tensor& part) const {
  const TensorShard* shard = ShardOf(parameter);
  if (shard == nullptr) return part;
  if (quantized_.contains(&parameter)) return WholeBytes(parameter, part);
  const Tensor local = part.Contiguous();
  const Tensor all = Tensor::Empty({group_->size(), local.numel()}, local.dtype(), local.context());
  group_->AllGather(all, local);
  std::vector<Tensor> locals;
  for (int rank = 0; rank < group_->size(); ++rank) {
    locals.push_back(all.Slice(0, rank, 1).View(local.shape()));
  }
  return Assemble(*shard, LogicalShape(parameter), locals);
}

// Parts of bytes may overlap, and differ in size.
Tensor TensorParallel::WholeBytes(const autograd::Parameter& parameter, const Tensor& part) const {
  std::vector<Layout> layouts;
  int64_t most = 0;
  for (int rank = 0; rank < group_->size(); ++rank) {
    layouts.push_back(LayoutOn(rank, parameter));
    most = std::max(most, layouts.back().local_numel());
  }
  const Tensor padded = Tensor::Zeros({most}, part.dtype(), part.context());
  padded.Slice(0, 0, part.numel()).CopyFrom(part);
  const Tensor all = Tensor::Empty({group_->size(), most}, part.dtype(), part.context());
  group_->AllGather(all, padded);
  return AssembleByLayouts(LogicalShape(parameter), layouts, all);
}

void TensorParallel::Replace(Module& module, const PlanRule& rule) {
  const comm::GroupPtr group = group_;
  const ParallelStyle style = rule.style;
  if (style == kVocabulary) return ReplaceVocabulary(module);
  if (style == kAttention) return;
  if (style == kDropout) {
    auto& dropout = dynamic_cast<Dropout&>(module);
    return module.ReplaceForward([&dropout, group, channels = cuts_channels_](const Tensor& x) {
      // Whether the dim that is cut is the last one or that of channels cannot be seen here.
      APOGEE_CHECK(!channels || x.rank() <= 2 || !dropout.is_training(), "dropout \"",
                   dropout.full_name(), "\": its input ", x.shape(),
                   " may be cut along its channels, since the plan has a convolution of style "
                   "column, and a mask can be cut along the last dim only; put the dropout behind "
                   "an nn::Flatten or where the activation is whole");
      const int64_t width = x.size(-1);
      return dropout.is_training() ? autograd::Dropout(x, dropout.p(), dropout.generator(),
                                                       {.first = group->rank() * width,
                                                        .total = group->size() * width},
                                                       dropout.sequence_part())
                                   : x;
    });
  }
  if (style == kHeadNorm || style == kColumnNorm) return ReplaceNorm(module, style);
  if (style == kExperts) {
    if (options_.keeps_experts) return;
    auto& experts = dynamic_cast<Experts&>(module);
    return module.ReplaceForward([&experts, group](const Tensor& rows) {
      return ReduceFromGroup(experts.Forward(CopyToGroup(rows, group)), group);
    });
  }
  if (auto* recurrent = dynamic_cast<Recurrent*>(&module)) {
    return module.ReplaceForward(
        [recurrent, group, style](const Tensor& copy) {
          return UnitParallelRecurrent(*recurrent, copy, group, style == kColumnGather);
        },
        SharedInput());
  }
  if (auto* conv = dynamic_cast<Convolution*>(&module)) return ReplaceConvolution(*conv, style);
  auto& linear = dynamic_cast<Linear&>(module);
  if (style == kColumn || style == kColumnGather) {
    return module.ReplaceForward(
        [&linear, group, style, adds = AddsUp()](const Tensor& copy) {
          const Tensor y = ColumnProduct(linear, copy, adds);
          return style == kColumn ? y : GatherLastDim(y, group);
        },
        SharedInput());
  }
  if (options_.cut_sequence) {
    return module.ReplaceForward([&linear, group](const Tensor& x) {
      return RowProduct(linear, x, group, /*cuts_tokens=*/true);
    });
  }
  module.ReplaceForward([&linear, group, style](const Tensor& x) {
    const Tensor own = style == kRow ? x : SplitLastDim(x, group);
    return RowProduct(linear, own, group, /*cuts_tokens=*/false);
  });
}

Module::ForwardFunction TensorParallel::SharedInput() const {
  return [copy = shared_copy_](const Tensor& x) { return (*copy)(x); };
}

void TensorParallel::ReplaceNorm(Module& module, ParallelStyle style) {
  if (style == kColumnNorm) {
    auto& norm = dynamic_cast<RmsNorm&>(module);
    return module.ReplaceForward([&norm, group = group_](const Tensor& x) {
      return RmsNormOfColumns(NormInput(norm, x, *norm.weight()), norm.weight()->value(),
                              norm.eps(), group);
    });
  }
  // Under cut_sequence the gradients of all whole parameters are addends, which are summed later.
  const comm::GroupPtr group = options_.cut_sequence ? nullptr : group_;
  if (auto* norm = dynamic_cast<RmsNorm*>(&module)) {
    return module.ReplaceForward([norm, group](const Tensor& x) {
      return RmsNormOfHeads(NormInput(*norm, x, *norm->weight()), norm->weight()->value(),
                            norm->eps(), group);
    });
  }
  auto& norm = dynamic_cast<LayerNorm&>(module);
  module.ReplaceForward([&norm, group](const Tensor& x) {
    return LayerNormOfHeads(NormInput(norm, x, *norm.weight()), norm.weight()->value(),
                            autograd::ValueOf(norm.bias()), norm.eps(), group);
  });
}

void TensorParallel::ReplaceConvolution(Convolution& conv, ParallelStyle style) {
  const comm::GroupPtr group = group_;
  if (style == kColumn || style == kColumnGather) {
    return conv.ReplaceForward(
        [&conv, group, style](const Tensor& copy) {
          const Tensor y = ColumnConvolution(conv, copy);
          return style == kColumn ? y : GatherChannels(y, group);
        },
        SharedInput());
  }
  conv.ReplaceForward([&conv, group, style](const Tensor& x) {
    return RowConvolution(conv, style == kRow ? x : SplitChannels(x, group), group);
  });
}

void TensorParallel::ReplaceVocabulary(Module& module) {
  const comm::GroupPtr group = group_;
  if (auto* embedding = dynamic_cast<Embedding*>(&module)) {
    const ops::VocabPart part = PartOf(LogicalShape(*embedding->weight())[0], group);
    const auto function =
        options_.cut_sequence ? VocabParallelEmbeddingOfTokens : VocabParallelEmbedding;
    return module.ReplaceForward([embedding, group, part, function](const Tensor& tokens) {
      const auto look_up = [&](const Tensor& table) {
        return function(tokens, table, part, group, embedding->padding_id());
      };
      return embedding->Finish(look_up(embedding->weight()->value()), look_up);
    });
  }
  auto& linear = dynamic_cast<Linear&>(module);
  const int64_t words =
      LogicalShape(*linear.weight())[linear.layout() == WeightLayout::kOutIn ? 0 : 1];
  const bool may_stay_cut = &linear == output_;
  const ops::VocabPart part = PartOf(words, group);
  linear.SetWholeLogits(words, options_.cut_sequence ? group->size() : 1);
  module.ReplaceForward(
      [&linear, group, words, part, may_stay_cut, adds = AddsUp(),
       keep = keep_logits_cut_](const Tensor& copy) {
        if (linear.head_loss() != nullptr) {
          const autograd::VocabSplit split{
              .part = part,
              .maximum = [&](const Tensor& x) { group->AllReduce(x, comm::ReduceOp::kMax); },
              .sum = [&](const Tensor& x) { group->AllReduce(x); }};
          return linear.head_loss()->Of(linear, copy, &split);
        }
        const Tensor y = ColumnProduct(linear, copy, adds);
        if (may_stay_cut && *keep && linear.is_training()) {
          return y.Sealed(WhyCut(part, y.size(-1)));
        }
        const Tensor all = GatherLastDim(y, group);
        return all.size(-1) == words ? all : autograd::Slice(all, -1, 0, words);
      },
      SharedInput());
}

TensorParallel::Loss TensorParallel::KeepLogitsCut(const CrossEntropyLoss& loss) {
  if (output_ == nullptr) return nullptr;
  *keep_logits_cut_ = true;
  const int64_t words =
      LogicalShape(*output_->weight())[output_->layout() == WeightLayout::kOutIn ? 0 : 1];
  return [loss, words, group = group_](const Tensor& output, const Tensor& targets) {
    const Tensor logits = output.Unsealed();
    if (logits.size(-1) == words) return loss(logits, targets);
    const int64_t part = (words + group->size() - 1) / group->size();
    APOGEE_CHECK(logits.size(-1) == part, "cross entropy: logits ", logits.shape(),
                 " are neither whole, ", words,
                 " words, nor, as the model returns them in training, the ", part,
                 " words of this rank");
    return VocabParallelCrossEntropy(logits, targets, PartOf(words, group), group,
                                     loss.ignore_index, loss.label_smoothing);
  };
}

}  // namespace apogee::nn::parallel
