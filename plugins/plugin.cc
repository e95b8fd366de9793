// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/plugin.h"

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/core/error.h"
#include "apogee/plugins/loss_normalizer.h"

namespace apogee {

void CheckLoss(const char* what, const Tensor& loss) {
  APOGEE_CHECK(loss.defined(), what, " is undefined");
  APOGEE_CHECK(loss.numel() == 1, what, " must be a scalar, got shape ", loss.shape(),
               "; reduce it first, for instance with autograd::Mean");
}

int Plugin::data_rank() const { return group() != nullptr ? group()->rank() : 0; }

int Plugin::data_size() const { return group() != nullptr ? group()->size() : 1; }

Tensor Plugin::WholeValue(const autograd::Parameter& parameter) const {
  APOGEE_CHECK(LayoutOf(parameter).is_whole(), "WholeValue: plugin ", name(), " keeps a part of \"",
               parameter.name(), "\" on this rank; it must override Plugin::WholeValue");
  return parameter.data();
}

void CheckStarts(const PipelineCall& call) {
  if (!call.starts.defined()) return;
  call.model.CheckTakesDocuments();
  APOGEE_CHECK(call.starts.shape() == call.inputs.shape(), "execute_pipeline: inputs ",
               call.inputs.shape(), " and starts ", call.starts.shape(),
               " differ; pass the starts of the same batch");
}

PipelineResult Plugin::ExecutePipeline(const PipelineCall& call) {
  const autograd::GradModeGuard grad_mode(call.optimizer != nullptr);
  CheckStarts(call);
  const Tensor outputs =
      call.starts.defined()
          ? call.model({{"tokens", call.inputs}, {"starts", call.starts}}).at("logits")
          : call.model(call.inputs);
  PipelineResult result;
  if (call.return_outputs) result.outputs = outputs.Detach();
  if (call.criterion == nullptr) return result;
  Tensor loss = call.criterion(outputs, call.targets);
  CheckLoss("execute_pipeline: the criterion's loss", loss);
  if (call.optimizer != nullptr) {
    if (call.auxiliary != nullptr) {
      if (const Tensor more = call.auxiliary({&call.model}); more.defined()) {
        CheckLoss("execute_pipeline: the auxiliary loss", more);
        loss = autograd::Add(loss, more);
      }
    }
    if (call.normalizer != nullptr) call.normalizer->NoteBackward(loss);
    Backward(loss, *call.optimizer);
  }
  result.loss = loss.Detach();
  return result;
}

}  // namespace apogee
