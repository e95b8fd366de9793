// SPDX-License-Identifier: Apache-2.0

// ExpertPicture: the loads of experts over the steps, as SVG. Private to driver.
//
//   std::string svg = ExpertPicture(shares, {8, 8}, /*first_step=*/1);
#ifndef APOGEE_DRIVER_RECORDS_EXPERT_PICTURE_H_
#define APOGEE_DRIVER_RECORDS_EXPERT_PICTURE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace apogee::driver {

// `shares` must not be empty. shares[s]: of step first_step + s, the loads of all layers' experts,
// 1 for an even load. `experts`: of each layer.
std::string ExpertPicture(const std::vector<std::vector<float>>& shares,
                          const std::vector<int64_t>& experts, int64_t first_step);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_RECORDS_EXPERT_PICTURE_H_
