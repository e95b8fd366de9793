// SPDX-License-Identifier: Apache-2.0

// ExpertPicture: the loads of experts over the steps, as SVG. Private to driver.
//
//   ExpertPicture picture({8, 8});                       // experts of each layer
//   picture.Add(loads);                                  // of a step
//   std::string svg = picture.Draw(/*last_step=*/300);
//
// Neighbouring steps share a column once there are many, so the memory does not grow with the
// steps.
#ifndef APOGEE_DRIVER_RECORDS_EXPERT_PICTURE_H_
#define APOGEE_DRIVER_RECORDS_EXPERT_PICTURE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace apogee::driver {

class ExpertPicture {
 public:
  explicit ExpertPicture(std::vector<size_t> experts);
  // The loads of all layers' experts in the next step, 1 for an even load.
  void Add(const std::vector<double>& loads);
  // `last_step`: that of the last Add. "" without steps.
  std::string Draw(int64_t last_step) const;

 private:
  // Sums of loads over some steps.
  struct Column {
    std::vector<double> loads;
    int64_t steps = 0;
  };
  void MergePairs();

  const std::vector<size_t> experts_;
  size_t most_columns_;
  std::vector<Column> columns_;
  int64_t steps_per_column_ = 1;
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_RECORDS_EXPERT_PICTURE_H_
