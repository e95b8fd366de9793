// SPDX-License-Identifier: Apache-2.0

// Statistics of one phase of a step: sums and maxima over logical tensors, packed into one buffer.
// They are partials of this rank at first, and totals once reduced.
//
//   StatBuffer buffer(DType::kF32, context);
//   int64_t rows = buffer.AddSums(view, view.layout().matrix().rows);    // declare ...
//   buffer.Allocate();
//   buffer.sums<float>(rows)[i] += x;                                    // ... partials ...
//   reducer.Reduce(buffer);                                              // ... totals
//
// All parameters share one buffer, so a phase costs one all-reduce of sums and one of maxima per
// group of ranks, however many parameters there are. Partials start at 0; maxima are of numbers
// >= 0.
//
// A partial sum is over the elements that this rank holds, each counted once. If several ranks hold
// the same elements (ParamView::num_replicas), CountReplicasOnce() multiplies the partials by
// 1 / num_replicas. The base class Optimizer calls it before reducing, so an update need not care.
#ifndef APOGEE_OPTIM_CORE_STATS_H_
#define APOGEE_OPTIM_CORE_STATS_H_

#include <vector>

#include "apogee/optim/param_view.h"

namespace apogee::comm {
class Group;
}

namespace apogee::optim {

class StatBuffer {
 public:
  // Numbers [offset, offset + count) of the buffer belong to `view`.
  struct Entry {
    const ParamView* view;
    int64_t offset;
    int64_t count;
    double weight = 1;  // CountReplicasOnce() multiplies this rank's partials by it
  };

  // `dtype`: f32, or f64 if a parameter is f64.
  StatBuffer(DType dtype, ContextPtr context) : dtype_(dtype), context_(std::move(context)) {}

  // These reserve `count` numbers and return their offset. Call before Allocate().
  int64_t AddSums(const ParamView& view, int64_t count) {
    return Add(sums_, view, count, 1.0 / view.num_replicas());
  }
  // Sums with one contributor: the owner of the parameter (ParamView::owned) writes the numbers,
  // all other ranks leave 0. The owner sends numbers to all ranks this way.
  int64_t AddFromOwner(const ParamView& view, int64_t count) { return Add(sums_, view, count, 1); }
  int64_t AddMaxima(const ParamView& view, int64_t count) { return Add(maxima_, view, count, 1); }
  void Allocate();
  // Multiplies the partial sums by their weights. Call once, before reducing.
  void CountReplicasOnce();

  // Only for a buffer in host memory; optim/core/stat_values.h works on any device.
  template <typename T>
  T* sums(int64_t offset) const {
    return sums_.values.data<T>() + offset;
  }
  template <typename T>
  T* maxima(int64_t offset) const {
    return maxima_.values.data<T>() + offset;
  }

  // For reducers: tensors of shape [n] (n may be 0), and the view that each number belongs to.
  const Tensor& sum_values() const { return sums_.values; }
  const Tensor& max_values() const { return maxima_.values; }
  const std::vector<Entry>& sum_entries() const { return sums_.entries; }
  const std::vector<Entry>& max_entries() const { return maxima_.entries; }
  DType dtype() const { return dtype_; }

 private:
  struct Section {
    std::vector<Entry> entries;
    int64_t count = 0;
    Tensor values;
  };
  int64_t Add(Section& section, const ParamView& view, int64_t count, double weight);

  DType dtype_;
  ContextPtr context_;
  Section sums_, maxima_;
};

// Turns partials into totals. This base class is for a single rank, whose partials are totals
// already: it does nothing. Plugins derive reducers over groups of ranks (group_stat_reducer.h);
// every rank of the group must then call step() together.
class StatReducer {
 public:
  virtual ~StatReducer() = default;
  virtual void Reduce(StatBuffer& /*buffer*/) {}
  // The ranks, for error messages. Null: one rank, or not known.
  virtual comm::Group* group() const { return nullptr; }
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_STATS_H_
