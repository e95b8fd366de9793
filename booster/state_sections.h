// SPDX-License-Identifier: Apache-2.0

// The sections of a training state, each to and from a checkpoint: weights, optimizer, schedule.
//
//   AddWeights(model, plugin, contents.parts);
//   AddOptimizer(optimizer, attributes, contents.parts);
//   ...
//   SectionReader sections(reader, attributes);
//   OptimizerSection section = sections.ReadOptimizer(optimizer);
//   APOGEE_RETURN_IF_ERROR(sections.status());
//
// What is read goes into tensors of its own: nothing changes until a caller applies it.
#ifndef APOGEE_BOOSTER_STATE_SECTIONS_H_
#define APOGEE_BOOSTER_STATE_SECTIONS_H_

#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/attributes.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/planned_save.h"
#include "apogee/optim/lr_scheduler.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

void AddWeights(const nn::Module& model, const Plugin& plugin,
                std::vector<checkpoint::TensorPart>& parts);
void AddOptimizer(const optim::Optimizer& optimizer, Attributes& attributes,
                  std::vector<checkpoint::TensorPart>& parts);
void AddSchedule(const optim::LrScheduler& scheduler, Attributes& attributes);

struct SavedSchedule {
  optim::LrSchedulerState state;
  std::vector<double> last_lrs;  // that were in force; empty in older checkpoints
};
// Once the state has been loaded: "", or how the rates differ, which the schedules' shapes cause.
std::string DifferenceOf(const SavedSchedule& saved, const optim::LrScheduler& scheduler);

class SectionReader {
 public:
  // They must outlive it.
  SectionReader(const checkpoint::CheckpointReader& reader, const Attributes& attributes)
      : reader_(reader), attributes_(attributes) {}

  // "", or a line about the weights that were saved in another precision.
  std::string DTypeDifference(const nn::Module& model) const;
  using Weights = std::vector<std::pair<autograd::ParameterPtr, Tensor>>;
  Weights ReadWeights(const nn::Module& model, const Plugin& plugin);
  // InvalidArgument for another optimizer or other groups; what else does not fit is in status().
  absl::StatusOr<optim::StateDict> ReadOptimizer(const optim::Optimizer& optimizer);
  // InvalidArgument where none was saved.
  absl::StatusOr<SavedSchedule> ReadSchedule() const;

  // DataLoss where a byte is damaged: an older checkpoint may be whole. Else InvalidArgument with a
  // list of all that does not fit.
  absl::Status status() const;

 private:
  absl::Status Read(const std::string& name, const comm::Layout& layout, const Tensor& to);
  void Note(const absl::Status& status);

  const checkpoint::CheckpointReader& reader_;
  const Attributes& attributes_;
  absl::Status damage_;
  std::string problems_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_STATE_SECTIONS_H_
