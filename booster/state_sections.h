// SPDX-License-Identifier: Apache-2.0

// The sections of a training state (weights, optimizer, schedule), each to and from a checkpoint.
//
//   AddWeights(model, plugin, contents.parts);
//   AddOptimizer(optimizer, attributes, contents.parts);
//   ...
//   SectionReader sections(reader, attributes);
//   APOGEE_ASSIGN_OR_RETURN(optim::StateDict states, sections.ReadOptimizer(optimizer));
//   APOGEE_RETURN_IF_ERROR(sections.status());
//
// Reading fills new tensors: nothing changes until the caller applies them.
#ifndef APOGEE_BOOSTER_STATE_SECTIONS_H_
#define APOGEE_BOOSTER_STATE_SECTIONS_H_

#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/attributes.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/planned_save.h"
#include "apogee/optim/schedule/lr_scheduler.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

// The parameters and buffers of a model, each with the part of it that this rank has.
struct PlacedTensor {
  autograd::ParameterPtr parameter;
  Layout layout;
};
std::vector<PlacedTensor> PlacedTensors(const nn::Module& model, const Plugin& plugin);

// Without the frozen parameters of a model with adapters (lora/base_digest.h).
void AddWeights(nn::Module& model, const Plugin& plugin,
                std::vector<checkpoint::TensorPart>& parts);
void AddOptimizer(const optim::Optimizer& optimizer, Attributes& attributes,
                  std::vector<checkpoint::TensorPart>& parts);
void AddSchedule(const optim::LrScheduler& scheduler, Attributes& attributes);

struct SavedSchedule {
  optim::LrSchedulerState state;
  std::vector<double> last_lrs;  // the rates in force; empty in older checkpoints
};
// Call it after the state was loaded. Returns "", or how the rates differ because the schedules'
// shapes do.
std::string DifferenceOf(const SavedSchedule& saved, const optim::LrScheduler& scheduler);

class SectionReader {
 public:
  // The arguments must outlive it.
  SectionReader(const checkpoint::CheckpointReader& reader, const Attributes& attributes)
      : reader_(reader), attributes_(attributes) {}

  // Returns "", or a line about weights that were saved in another precision.
  std::string DTypeDifference(const nn::Module& model) const;
  using Weights = std::vector<std::pair<autograd::ParameterPtr, Tensor>>;
  Weights ReadWeights(nn::Module& model, const Plugin& plugin);
  // InvalidArgument for another optimizer or other groups. status() has the other problems.
  absl::StatusOr<optim::StateDict> ReadOptimizer(const optim::Optimizer& optimizer);
  // InvalidArgument if none was saved.
  absl::StatusOr<SavedSchedule> ReadSchedule() const;

  // DataLoss if a byte is damaged (an older checkpoint may be whole). Else InvalidArgument with a
  // list of everything that does not fit.
  absl::Status status() const;

 private:
  absl::Status Read(const std::string& name, const Layout& layout, const Tensor& to);
  void Note(const absl::Status& status);

  const checkpoint::CheckpointReader& reader_;
  const Attributes& attributes_;
  absl::Status damage_;
  std::string problems_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_STATE_SECTIONS_H_
