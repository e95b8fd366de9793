// SPDX-License-Identifier: Apache-2.0

// The statistics of one phase of a step, packed: sums and maxima over logical tensors, first local
// partials, then, once reduced, totals.
//
//   StatBuffer buffer(DType::kF32, context);
//   int64_t rows = buffer.AddSums(view, view.layout().matrix().rows);    // declare ...
//   buffer.Allocate();
//   buffer.sums<float>(rows)[i] += x;                                    // ... partials ...
//   reducer.Reduce(buffer);                                              // ... totals
//
// All parameters share one buffer, so that a phase costs one collective per operation and group
// however many parameters there are. Partials start at 0; maxima are of numbers >= 0.
//
// Partials of sums are over the elements that this rank holds, each counted once. Where several
// ranks hold the same elements (ParamView::num_replicas), CountReplicasOnce(), which the
// optimizer's base class calls before it reduces, multiplies them by 1 / num_replicas: an update
// need not know.
#ifndef APOGEE_OPTIM_STATS_H_
#define APOGEE_OPTIM_STATS_H_

#include <vector>

#include "apogee/optim/param_view.h"

namespace apogee::comm {
class Group;
}

namespace apogee::optim {

class StatBuffer {
 public:
  // Elements [offset, offset + count) belong to `view`; its layout names the ranks that hold the
  // rest.
  struct Entry {
    const ParamView* view;
    int64_t offset;
    int64_t count;
    double weight = 1;  // of this rank's partials in a total
  };

  // f32, or f64 where parameters are.
  StatBuffer(DType dtype, ContextPtr context) : dtype_(dtype), context_(std::move(context)) {}

  // Reserve `count` numbers and return their offset. Not after Allocate().
  int64_t AddSums(const ParamView& view, int64_t count) {
    return Add(sums_, view, count, 1.0 / view.num_replicas());
  }
  // Sums of which one rank alone gives what counts, and the others give 0, whoever holds what: what
  // the owner of a parameter (ParamView::owned) sends to all.
  int64_t AddFromOwner(const ParamView& view, int64_t count) { return Add(sums_, view, count, 1); }
  int64_t AddMaxima(const ParamView& view, int64_t count) { return Add(maxima_, view, count, 1); }
  void Allocate();
  // Gives partials of sums their weights. Once, before they are reduced.
  void CountReplicasOnce();

  // For the processor, where the buffer is in its memory; optim/stat_values.h serves any device.
  template <typename T>
  T* sums(int64_t offset) const {
    return sums_.values.data<T>() + offset;
  }
  template <typename T>
  T* maxima(int64_t offset) const {
    return maxima_.values.data<T>() + offset;
  }

  // What a reducer works on: [n] tensors (n may be 0) and who their elements belong to.
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

// Turns local partials into totals. This one is for a single rank, which holds everything: it does
// nothing. Plugins derive one that reduces over the groups of the views' layouts; every rank of
// those groups must then call step() together.
class StatReducer {
 public:
  virtual ~StatReducer() = default;
  virtual void Reduce(StatBuffer& /*buffer*/) {}
  // The ranks, to name them in messages; null: one, or they are not known.
  virtual comm::Group* group() const { return nullptr; }
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STATS_H_
