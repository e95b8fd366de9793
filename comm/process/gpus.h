// SPDX-License-Identifier: Apache-2.0

// Whether ranks that are processes can use NCCL together: what each has, told to all, so that all
// come to the same answer before anything is launched. Private to comm/process.
//
//   const std::vector<GpuOfRank> gpus = ShareGpus(group, DescribeGpu(NcclApi::Load(), device));
//   APOGEE_RETURN_IF_ERROR(CompareGpus(gpus));
#ifndef APOGEE_COMM_PROCESS_GPUS_H_
#define APOGEE_COMM_PROCESS_GPUS_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/comm/nccl/api.h"

namespace apogee::comm::process {

struct GpuOfRank {
  std::string error;    // why there is no NCCL; empty: there is
  std::string machine;  // by name, and by what tells apart machines of one name
  std::string bus_id;   // of the GPU: "0000:3B:00.0"
  std::string device;   // "cuda:1"
  int nccl_version = 0;
};

GpuOfRank DescribeGpu(const absl::StatusOr<std::shared_ptr<const nccl::NcclApi>>& api,
                      Device device);
// What every member has, in the order of the group. Collective.
std::vector<GpuOfRank> ShareGpus(Group& group, const GpuOfRank& own);
// FailedPrecondition: some rank has no NCCL, or another one than the others, or two ranks have one
// GPU, which NCCL does not take.
absl::Status CompareGpus(std::span<const GpuOfRank> gpus);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_GPUS_H_
