// SPDX-License-Identifier: Apache-2.0

// Rewrites a checkpoint folder offline: cuts it into another number of files, or exports only its
// model's weights as a Hugging Face folder. Tensors of any size stream through a few MiB. Every
// byte read is checked against its digest.
//
//   absl::Status cut = ReshardCheckpoint(RealFileSystem(), "run/step-100", "cut",
//                                        {.num_files = 4});
//   absl::Status out = ExportModelWeights(RealFileSystem(), "run/step-100", "out",
//                                         {.size_per_shard_mb = 5120});
//
// Both work as in checkpoint_writer.h: a temporary folder, synced, then renamed. On an error
// nothing is left. One process calls, alone. Errors:
//
//   AlreadyExists      `to` exists; nothing is ever overwritten
//   DataLoss           `from` is damaged, or a file that its manifest lists is missing; names the
//                      file, the tensor and its bytes
//   NotFound           `from` has no manifest
//   ResourceExhausted  the disk is full
#ifndef APOGEE_CHECKPOINT_RESHARD_H_
#define APOGEE_CHECKPOINT_RESHARD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/hf/hf_weights.h"

namespace apogee::checkpoint {

inline constexpr int64_t kMaxReshardFiles = 10'000;

struct ReshardOptions {
  // Number of files. Each holds an equal, contiguous part of every tensor. InvalidArgument unless 1
  // to kMaxReshardFiles.
  int64_t num_files = 1;
};

// The new checkpoint has the attributes and tensors of the old one. It loads under the same models,
// optimizers, plugins and numbers of ranks.
absl::Status ReshardCheckpoint(const std::shared_ptr<FileSystem>& files, const std::string& from,
                               const std::string& to, const ReshardOptions& options);

// Writes the same files as Booster::save_model at that step: each tensor "model/NAME" as
// NAME, whole, in its saved dtype. InvalidArgument if there are none.
absl::Status ExportModelWeights(const std::shared_ptr<FileSystem>& files, const std::string& from,
                                const std::string& to, const SaveWeightsOptions& options);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_RESHARD_H_
