// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/reference.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <vector>

namespace apogee::matrix {
namespace {

constexpr double kF32Bound = 1e-5;
constexpr double kF64Bound = 1e-9;
// A bound is this many times the change that reordering the one-rank run's sums makes.
constexpr double kNoiseFactor = 10;
constexpr Reordering kReorderings[] = {{1, 1, 1}, {2, 3, 3}, {3, 4, 1.5},   {4, 9, 1.25},
                                       {5, 2, 3}, {6, 6, 1}, {7, 12, 1.75}, {8, 3, 1.1}};
// The same for LookFurther. It finds single events, not noise, and they are as large in a boosted
// run as in the one-rank run.
constexpr double kEventFactor = 2;
constexpr int kNumFurtherOrders = 1260;
// The change in an element's update from one 8-bit code more or less. It happens in a few runs of a
// hundred, so the runs that measure noise mostly miss it.
constexpr double kOneCode = 0.1;
// The change from one sign for Lion, whose steps are signs: two of an element's twenty steps. Just
// as rare.
constexpr double kOneSign = 0.1;

// Processor time of this thread, on which a one-rank run computes everything.
double ProcessorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The change from rounding the weights once, to a relative unit `unit`, relative to the update (not
// 0).
double WeightRounding(double unit, const std::vector<double>& start,
                      const std::vector<double>& end) {
  double weight = 0, update = 0;
  for (size_t i = 0; i < end.size(); ++i) {
    weight += end[i] * end[i];
    update += (end[i] - start[i]) * (end[i] - start[i]);
  }
  return unit * std::sqrt(weight / update);
}

// The change from one flipped sign, relative to the update, if some element moved in the same
// direction in every step.
double SignChange(const std::vector<double>& start, const std::vector<double>& end) {
  double largest = 0, update = 0;
  for (size_t i = 0; i < end.size(); ++i) {
    largest = std::max(largest, std::abs(end[i] - start[i]));
    update += (end[i] - start[i]) * (end[i] - start[i]);
  }
  return kOneSign * largest / std::sqrt(update);
}

// Eigenvectors of small eigenvalues magnify the rounding of f64.
bool HasEigenvectors(const Cell& cell) { return cell.optimizer == "soap"; }

bool IsExact(const Cell& cell) {
  return cell.precision == "f64" || cell.catalog->FindWorkload(cell.workload).has_exact_means();
}

// All different: 63 combinations of sample order and micro-batches, each with 20 scales.
Reordering FurtherOrder(int i) {
  constexpr int64_t kMicroBatches[] = {1, 2, 3, 4, 6, 9, 12};
  return {i % 9, kMicroBatches[i % 7], 1 + 0.035 * (i / 63)};
}

void Widen(Reference& reference, const Cell& cell, const Reordering& order, double factor) {
  const Weights end = PlainRun(cell, order).end;
  for (const auto& [name, noise] : UpdateErrors(reference.plain.start, reference.plain.end, end)) {
    double& bound = reference.bounds[name];
    bound = std::min(std::max(bound, factor * noise), kLargestBound);
  }
}

Reference MakeReference(const Cell& cell) {
  Reference reference{PlainRun(cell, {}), {}};
  const Weights& start = reference.plain.start;
  const Weights& end = reference.plain.end;
  const bool exact = IsExact(cell);
  // The unit of f32; of bf16 if there are only bf16 weights, without masters.
  const double unit = cell.precision == "bf16" && !HasMasters(cell) ? 0x1p-9 : 0x1p-24;
  for (const auto& [name, values] : end) {
    double& bound = reference.bounds[name];
    if (exact) {
      bound = cell.precision == "f64" ? kF64Bound : kF32Bound;
    } else if (values != start.at(name)) {
      // A minimum, in case the few runs below agree to the last bit.
      bound = kNoiseFactor * WeightRounding(unit, start.at(name), values);
      const auto numel = static_cast<double>(values.size());
      if (reference.plain.has_codes) bound = std::max(bound, kOneCode / std::sqrt(numel));
      // Flipped signs come in pairs, because the momentum remembers the first.
      if (cell.optimizer == "lion") bound = std::max(bound, 2 * SignChange(start.at(name), values));
    }
  }
  if (exact && !(HasEigenvectors(cell) && cell.precision == "f64")) return reference;
  for (const Reordering& order : kReorderings) Widen(reference, cell, order, kNoiseFactor);
  return reference;
}

}  // namespace

Reference& ReferenceCache::Find(const Cell& cell) {
  const std::string key =
      cell.optimizer + "/" + cell.precision + (HasMasters(cell) ? "/masters" : "") +
      (cell.clip ? "/clip/" : "/") + (cell.ignored ? "ignored/" : "") +
      (cell.shares_micro_batches() ? std::to_string(cell.num_shared_micro_batches()) + "/" : "") +
      cell.workload;
  const auto found = references_.find(key);
  if (found != references_.end()) return found->second;
  return references_.emplace(key, MakeReference(cell)).first->second;
}

const Reference& ReferenceCache::Get(const Cell& cell) { return Find(cell); }

bool ReferenceCache::LookFurther(const Cell& cell,
                                 const std::function<bool(const Reference&)>& takes) {
  if (IsExact(cell)) return false;
  Reference& reference = Find(cell);
  while (reference.num_further_orders < kNumFurtherOrders &&
         reference.search_seconds < limits_.seconds_per_reference &&
         *search_seconds_ < limits_.seconds_in_all) {
    const double start = ProcessorSeconds();
    Widen(reference, cell, FurtherOrder(reference.num_further_orders++), kEventFactor);
    const double seconds = ProcessorSeconds() - start;
    reference.search_seconds += seconds;
    search_seconds_->fetch_add(seconds);
    if (takes(reference)) return true;
  }
  return false;
}

}  // namespace apogee::matrix
