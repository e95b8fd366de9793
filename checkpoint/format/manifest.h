// SPDX-License-Identifier: Apache-2.0

// Manifest: the contents of a checkpoint folder: logical tensors, the slices of files that hold
// them, digests of every byte, and free-form attributes. It is independent of optimizers and
// plugins.
//
//   std::string json = FormatManifest(manifest);
//   APOGEE_ASSIGN_OR_RETURN(Manifest back, ParseManifest(json, "step-100/manifest.json"));
//
// The text is untrusted: the parser never builds a document of it, limits the memory it keeps, and
// checks every sum and product. It refuses everything that FormatManifest would not have written:
// unknown or repeated fields, another version, files outside the folder, slices that overlap, leave
// holes or exceed the tensor, a wrong number of digests. Errors name the path and the field.
#ifndef APOGEE_CHECKPOINT_FORMAT_MANIFEST_H_
#define APOGEE_CHECKPOINT_FORMAT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/layout/layout.h"

namespace apogee::checkpoint {

inline constexpr int64_t kManifestVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";
// One digest per block of this size, so that a rank can check the part that it reads.
inline constexpr int64_t kDigestBlockBytes = 1 << 16;

// The segments [begin + i * stride, begin + i * stride + length) for i < count. For example, a
// column of a matrix is one run.
struct Run {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t stride = 0;  // 0 when count is 1
  int64_t count = 1;
  friend bool operator==(const Run&, const Run&) = default;
};

// One rank's part of a tensor, one 1-D entry of a safetensors file.
struct Slice {
  std::string file;   // in Manifest::files
  std::string entry;  // name in that file
  std::vector<Run> runs;
  std::vector<uint64_t> digests;  // XXH3-64 of each block
  int64_t numel() const {
    int64_t sum = 0;
    for (const Run& run : runs) sum += run.length * run.count;
    return sum;
  }
};

struct LogicalTensor {
  std::string dtype;  // as in safetensors: "F32"
  std::vector<int64_t> shape;
  std::vector<Slice> slices;
  int64_t bytes() const;
};

struct Manifest {
  // Numbers are texts that read back to the same bits.
  std::map<std::string, std::string> attributes;
  std::map<std::string, int64_t> files;  // bytes by name
  std::map<std::string, LogicalTensor> tensors;
};

std::string FormatManifest(const Manifest& manifest);
// `path` is for messages. Unimplemented for a version above kManifestVersion, else DataLoss.
absl::StatusOr<Manifest> ParseManifest(const std::string& json, const std::string& path);

// Convert both ways, without loss.
std::vector<Run> RunsOf(std::span<const Segment> segments);
std::vector<Segment> SegmentsOf(std::span<const Run> runs);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FORMAT_MANIFEST_H_
