// SPDX-License-Identifier: Apache-2.0

// Rewrites a checkpoint folder offline: cut anew over other files, or its model's weights alone as
// a Hugging Face folder. Tensors stream through a few MiB, whatever their sizes; every byte that is
// read is checked against its digest.
//
//   absl::Status cut = ReshardCheckpoint(RealFileSystem(), "run/step-100", "cut", {.num_files =
//   4}); absl::Status out = ExportModelWeights(RealFileSystem(), "run/step-100", "out",
//                                         {.size_per_shard_mb = 5120});
//
// Both follow checkpoint_writer.h: a temporary folder, synced, then renamed. AlreadyExists for a
// `to` that is there: nothing is ever overwritten; on an error nothing is left. DataLoss for what
// is damaged in `from`, a file that its manifest lists and that is missing included: names the
// file, the tensor and its bytes. NotFound for a folder without a manifest. ResourceExhausted for a
// full disk. One process calls, alone.
#ifndef APOGEE_CHECKPOINT_RESHARD_H_
#define APOGEE_CHECKPOINT_RESHARD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "apogee/checkpoint/file_system.h"
#include "apogee/checkpoint/hf_weights.h"

namespace apogee::checkpoint {

inline constexpr int64_t kMaxReshardFiles = 10'000;

struct ReshardOptions {
  // Each holds an equal, contiguous part of every tensor. 1 to kMaxReshardFiles; InvalidArgument
  // else.
  int64_t num_files = 1;
};

// The new checkpoint has the attributes and tensors of the old one and loads wherever that loads.
absl::Status ReshardCheckpoint(const std::shared_ptr<FileSystem>& files, const std::string& from,
                               const std::string& to, const ReshardOptions& options);

// What Booster::save_model would have written at that step: the tensors "model/NAME" as NAME,
// whole, in the dtype they were saved with. InvalidArgument where there are none.
absl::Status ExportModelWeights(const std::shared_ptr<FileSystem>& files, const std::string& from,
                                const std::string& to, const SaveWeightsOptions& options);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_RESHARD_H_
