// SPDX-License-Identifier: Apache-2.0

// LossNormalizer: makes the loss of a batch the mean over all its targets that count, however
// unevenly ranks and pipeline micro-batches share these targets.
//
//   LossNormalizer normalizer(plugin.data_group());
//   Criterion loss = normalizer.Wrap(plugin.ConfigureCriterion(criterion), criterion);
//   Tensor share = loss(model(inputs), targets);    // backward averages gradients over the ranks
//
// Rank r of R has a mean m_r over n_r targets. In training its loss is
//
//   R * n_r / (n_0 + .. + n_{R-1}) * m_r
//
// so the mean over ranks, of losses and of gradients, is the mean over all targets. If every rank
// has equally many targets the factor is 1 and the loss is m_r itself, bit for bit. A rank without
// targets has the loss 0. In evaluation mode and under NoGradGuard the loss is m_r and nothing is
// communicated; only a pipeline weighs its micro-batches by their targets there, too.
//
// Cost: a blocking all-gather of 32 bytes per rank and micro-batch. One rank needs none. Inside
// Window there is one per window. A pipeline needs one per call, on the ranks of its last part.
// Every rank of the group must call in training.
//
// A loss that the wrapped criterion did not make is averaged over the ranks as it is. Before the
// step the ranks compare the batches behind such losses (CheckStep).
#ifndef APOGEE_PLUGINS_LOSS_NORMALIZER_H_
#define APOGEE_PLUGINS_LOSS_NORMALIZER_H_

#include <functional>
#include <memory>
#include <span>

#include "apogee/comm/group.h"
#include "apogee/nn/module.h"

namespace apogee {

class LossNormalizer {
 public:
  using Criterion = std::function<Tensor(const Tensor& output, const Tensor& target)>;

  // `copies`: the ranks over which gradients are averaged; each has samples of its own. Null: one
  // rank.
  explicit LossNormalizer(comm::GroupPtr copies);
  ~LossNormalizer();
  // Records the batches that `model` gets.
  void Attach(nn::Module& model);

  // Returns `loss` normalised; null stays null. `original` is the user's criterion. It says which
  // targets count: nn::CrossEntropyLoss and nn::MeanLoss know, for other functions all targets
  // count.
  Criterion Wrap(Criterion loss, const Criterion& original);

  // While the handle lives, losses are addends of the mean over a window of micro-batches, in which
  // this rank has `num_targets` targets that count. Collective. Throws Error while another handle
  // lives.
  std::shared_ptr<void> Window(int64_t num_targets);

  // Whether a handle of Window lives.
  bool in_window() const;

  // Begins a batch that a pipeline cuts into micro-batches of samples [begin[m], begin[m + 1]).
  // While the handle lives, losses are addends of the batch's mean. `targets` may be undefined.
  std::shared_ptr<void> BeginCall(const Tensor& targets, std::span<const int64_t> begin,
                                  bool training);
  // Call it before the criterion of a micro-batch. `unplaced`: random masks were drawn without the
  // place of the batch's samples in the whole batch.
  void BeginLoss(int micro, bool unplaced);
  // Call it at the end of a call if the wrapped criterion did not make its losses: the pipeline has
  // weighed them by samples.
  void NoteRawCall();
  // The number of losses that the wrapped criterion has normalised.
  int64_t num_losses() const;

  // Call it before backward of `loss`.
  void NoteBackward(const Tensor& loss);
  // Call it before each step. Throws Error, on every rank, if losses were not normalised and ranks
  // had unequal batches or numbers of targets, or if a window had other targets than Window was
  // told. Collective in steps with such losses or windows.
  void CheckStep();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the wrapped criterion, which may outlive this
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_LOSS_NORMALIZER_H_
