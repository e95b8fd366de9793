// SPDX-License-Identifier: Apache-2.0

// LossNormalizer: makes the loss of a batch, of which ranks and pipeline micro-batches have parts,
// the mean over all its targets that count, however unevenly these are spread.
//
//   LossNormalizer normalizer(plugin.data_group());
//   Criterion loss = normalizer.Wrap(plugin.ConfigureCriterion(criterion), criterion);
//   Tensor share = loss(model(inputs), targets);    // backward averages gradients over the ranks
//
// Rank r of R has a mean m_r over n_r targets. In training its loss is
//
//   R * n_r / (n_0 + .. + n_{R-1}) * m_r
//
// so that the mean over ranks, of losses as of gradients, is the mean over all targets. Where every
// rank has as many targets the factor is 1 and the loss is m_r itself, bit for bit. A rank without
// targets has the loss 0. In evaluation mode and under NoGradGuard the loss is m_r, and nothing is
// communicated, but for micro-batches of a pipeline, which weigh by their targets there, too.
//
// Costs one all-gather of 32 bytes per rank and micro-batch, waited for; none on one rank, one per
// window within Window, one per call in a pipeline, on the ranks of its last part. Every rank of
// the group must call in training.
//
// A loss that was not made by the wrapped criterion is averaged over the ranks as it is. Before the
// step the ranks compare what such losses were made of (CheckStep).
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

  // `copies`: the ranks over which gradients are averaged, each with samples of its own; null: one.
  explicit LossNormalizer(comm::GroupPtr copies);
  ~LossNormalizer();
  // Sees the batches of `model`.
  void Attach(nn::Module& model);

  // `loss`, null or not, normalised. `original` is what the user gave: it says which targets count
  // (nn::CrossEntropyLoss, nn::MeanLoss; of other functions all do).
  Criterion Wrap(Criterion loss, const Criterion& original);

  // Until the handle goes, losses are addends of the mean over a window of micro-batches, of which
  // this rank has `num_targets` that count. Collective. Throws Error while another handle lives.
  std::shared_ptr<void> Window(int64_t num_targets);

  // A batch that a pipeline cuts into micro-batches of samples [begin[m], begin[m + 1]): until the
  // handle goes, losses are addends of its mean. `targets` may be undefined.
  std::shared_ptr<void> BeginCall(const Tensor& targets, std::span<const int64_t> begin,
                                  bool training);
  // Before the criterion of a micro-batch. `unplaced`: random masks were drawn without knowing the
  // place of the batch's samples.
  void BeginLoss(int micro, bool unplaced);
  // At the end of a call whose losses were not the wrapped criterion's: the pipeline has weighed
  // them by samples.
  void NoteRawCall();
  // How many losses the wrapped criterion has normalised.
  int64_t num_losses() const;

  // Before backward of `loss`.
  void NoteBackward(const Tensor& loss);
  // Before each step: throws Error, on every rank, where ranks had unequal batches, or numbers of
  // targets, behind losses that were not normalised, or other targets than Window was told.
  // Collective in steps with such losses or windows.
  void CheckStep();

 private:
  struct State;
  std::shared_ptr<State> state_;  // also the wrapped criterion's, which may outlive this
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_LOSS_NORMALIZER_H_
