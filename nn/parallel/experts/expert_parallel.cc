// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/experts/expert_parallel.h"

#include <numeric>
#include <utility>

#include "apogee/autograd/functions/grouped.h"
#include "apogee/autograd/node.h"
#include "apogee/nn/moe/experts.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::nn::parallel {
namespace {

using Counts = std::vector<int64_t>;

// x [rows, d], of which sends[r] rows go to rank r -> [sum of receives, d], in rank order.
Tensor SendRows(const Tensor& x, const Counts& sends, const Counts& receives,
                const comm::GroupPtr& group) {
  const int64_t width = x.size(1);
  const auto elements = [width](Counts rows) {
    for (int64_t& count : rows) count *= width;
    return rows;
  };
  const int64_t rows = std::accumulate(receives.begin(), receives.end(), int64_t{0});
  const Tensor y = Tensor::Empty({rows, width}, x.dtype(), x.context());
  group->AllToAll(y, elements(receives), x.Contiguous(), elements(sends));
  return y;
}

// Backward multiplies the gradient by `factor`.
Tensor ExchangeRows(const Tensor& x, const Counts& sends, const Counts& receives,
                    const comm::GroupPtr& group, double factor) {
  Tensor y = SendRows(x.Detach(), sends, receives, group);
  const auto gradient = [sends, receives, group, factor](const Tensor& dy) {
    return SendRows(ops::Scale(dy, factor), receives, sends, group);
  };
  if (autograd::AttachMap(y, "exchange_rows", x, gradient) != nullptr) {
    autograd::SetGradDType(y, autograd::GradDType(x));
  }
  return y;
}

// The rows that came from the ranks, sorted by expert.
struct Arrival {
  Counts rows_of_rank = {};    // rows from each rank
  Counts rows_of_expert = {};  // rows of each of this rank's experts
  Counts order = {};           // by sorted row: the row as it came
  Counts place = {};           // the inverse
};

// counts[r * n + e]: the rows from rank r for this rank's expert e of n.
Arrival SortArrival(const Counts& counts, size_t num_ranks) {
  const size_t n = counts.size() / num_ranks;
  Arrival arrival{.rows_of_rank = Counts(num_ranks), .rows_of_expert = Counts(n)};
  Counts begin;  // of the rows from r for e, as they come
  int64_t rows = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    begin.push_back(rows);
    rows += counts[i];
    arrival.rows_of_rank[i / n] += counts[i];
    arrival.rows_of_expert[i % n] += counts[i];
  }
  arrival.place.resize(static_cast<size_t>(rows));
  for (size_t e = 0; e < n; ++e) {
    for (size_t r = 0; r < num_ranks; ++r) {
      for (int64_t i = 0; i < counts[r * n + e]; ++i) {
        const int64_t row = begin[r * n + e] + i;
        arrival.place[static_cast<size_t>(row)] = static_cast<int64_t>(arrival.order.size());
        arrival.order.push_back(row);
      }
    }
  }
  return arrival;
}

Tensor Ids(const Counts& ids, const ContextPtr& context) {
  return Tensor::FromVector<int64_t>(ids, {static_cast<int64_t>(ids.size())}, context);
}

// The experts' results for `rows`, which are sorted by expert.
Tensor RunOverRanks(Experts& experts, const Tensor& rows, const comm::GroupPtr& ep,
                    const comm::GroupPtr& tp) {
  const Counts& counts = experts.counts();
  const auto num_ranks = static_cast<size_t>(ep->size());
  const size_t own = counts.size() / num_ranks;
  const Tensor sent = Ids(counts, rows.context());
  const Tensor came = Tensor::Empty(sent.shape(), DType::kI64, rows.context());
  ep->AllToAll(came, sent);
  const Arrival arrival = SortArrival(came.ToVector<int64_t>(), num_ranks);
  Counts sends(num_ranks);
  for (size_t e = 0; e < counts.size(); ++e) sends[e / own] += counts[e];
  // Experts get the mean over the ranks' losses, as all-reduced gradients are; what flows on to the
  // rows has the scale of this rank's loss again.
  const auto ranks = static_cast<double>(ep->size());
  const Tensor here = ExchangeRows(rows, sends, arrival.rows_of_rank, ep, ranks);
  const Tensor sorted = autograd::TakeRows(here, Ids(arrival.order, rows.context()));
  const size_t first = static_cast<size_t>(ep->rank()) * own;
  const Tensor y =
      ReduceFromGroup(experts.Compute(CopyToGroup(sorted, tp), arrival.rows_of_expert, first), tp);
  const Tensor back = autograd::TakeRows(y, Ids(arrival.place, rows.context()));
  return ExchangeRows(back, arrival.rows_of_rank, sends, ep, 1 / ranks);
}

std::vector<Experts*> ExpertsOf(Module& model) {
  std::vector<Experts*> all;
  for (Module* module : model.Modules()) {
    if (auto* experts = dynamic_cast<Experts*>(module)) all.push_back(experts);
  }
  return all;
}

}  // namespace

std::vector<std::string> ExpertProblems(Module& model, int ep) {
  std::vector<std::string> problems;
  const std::vector<Experts*> all = ExpertsOf(model);
  if (all.empty()) {
    problems.push_back("the model has no mixture of experts (nn::Moe), and ep_size is " +
                       std::to_string(ep));
  }
  for (const Experts* experts : all) {
    const size_t count = experts->matrices().gate.size();
    if (count % static_cast<size_t>(ep) == 0) continue;
    problems.push_back(internal::Concat("ep_size ", ep, " does not divide the ", count,
                                        " experts of ", experts->full_name()));
    break;
  }
  return problems;
}

ExpertParallel::ExpertParallel(Module& model, comm::GroupPtr ep, comm::GroupPtr tp)
    : model_(model), ep_(std::move(ep)), tp_(std::move(tp)) {
  APOGEE_CHECK(ep_ != nullptr, "expert parallel: needs a group");
  std::string problems;
  for (const std::string& problem : ExpertProblems(model, ep_->size()))
    problems += "\n  " + problem;
  APOGEE_CHECK(problems.empty(), "expert parallel:", problems);
  for (const Experts* experts : ExpertsOf(model)) {
    const Experts::Matrices& matrices = experts->matrices();
    const size_t own = matrices.gate.size() / static_cast<size_t>(ep_->size());
    for (size_t e = 0; e < matrices.gate.size(); ++e) {
      for (const auto* of : {&matrices.gate, &matrices.up, &matrices.down}) {
        holders_[(*of)[e].get()] = static_cast<int>(e / own);
      }
    }
  }
}

void ExpertParallel::Apply() {
  for (Experts* experts : ExpertsOf(model_)) {
    experts->ReplaceForward([experts, ep = ep_, tp = tp_](const Tensor& rows) {
      return RunOverRanks(*experts, rows, ep, tp);
    });
  }
}

int ExpertParallel::HolderOf(const Parameter& parameter) const {
  const auto found = holders_.find(&parameter);
  return found == holders_.end() ? -1 : found->second;
}

}  // namespace apogee::nn::parallel
