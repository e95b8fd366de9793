// SPDX-License-Identifier: Apache-2.0

// Decides whether ranks that are processes can use NCCL together. Every rank tells all others which
// NCCL and GPU it has, so all come to the same answer before anything is launched. Private to
// comm/process.
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
  std::string error;    // why NCCL cannot be used; empty: it can
  std::string machine;  // its name, and an id that distinguishes machines of the same name
  std::string bus_id;   // of the GPU: "0000:3B:00.0"
  std::string device;   // "cuda:1"
  int nccl_version = 0;
};

GpuOfRank DescribeGpu(const absl::StatusOr<std::shared_ptr<const nccl::NcclApi>>& api,
                      Device device);
// Returns the descriptions of all members, in the order of the group. Collective.
std::vector<GpuOfRank> ShareGpus(Group& group, const GpuOfRank& own);
// Returns FailedPrecondition if a rank has no NCCL or another version than the others, or if two
// ranks use the same GPU, which NCCL does not support.
absl::Status CompareGpus(std::span<const GpuOfRank> gpus);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_GPUS_H_
