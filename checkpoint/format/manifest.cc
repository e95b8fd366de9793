// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/format/manifest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apogee/checkpoint/format/manifest_parser.h"
#include "apogee/checkpoint/format/safetensors_header.h"
#include "apogee/checkpoint/run_merge.h"

namespace apogee::checkpoint {
namespace {

using internal::Concat;

// How often the first `period` segments repeat with one stride.
struct Repeat {
  size_t period = 1;
  int64_t stride = 0;
  int64_t count = 1;
};

Repeat LongestRepeat(std::span<const Segment> segments) {
  Repeat best;
  if (segments.size() < 2) return best;
  const int64_t stride = segments[1].begin - segments[0].begin;
  int64_t count = 1;
  while (static_cast<size_t>(count) < segments.size() &&
         segments[static_cast<size_t>(count)].length == segments[0].length &&
         segments[static_cast<size_t>(count)].begin == segments[0].begin + count * stride) {
    ++count;
  }
  if (count > 1) best = {1, stride, count};
  return best;
}

std::string Hex(std::span<const uint64_t> digests) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint64_t digest : digests) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[digest >> shift & 15];
  }
  return text;
}

// The manifest's last field is the digest of the text before it.
std::string DigestField(uint64_t digest) { return ",\"digest\":\"" + Hex({&digest, 1}) + "\"}\n"; }

bool HasItsDigest(const std::string& text) {
  const size_t tail = DigestField(0).size();
  if (text.size() < tail) return false;
  const size_t body = text.size() - tail;
  return text.compare(body, tail, DigestField(XXH3_64bits(text.data(), body))) == 0;
}

// Returns "", or why the runs of one slice are wrong for a tensor of `numel` elements. `total`: how
// many elements they hold.
std::string CheckRuns(std::span<const Run> runs, int64_t numel, int64_t& total) {
  total = 0;
  for (const Run& run : runs) {
    int64_t last = 0, elements = 0;
    if (run.begin < 0 || run.length < 1 || run.count < 1 || run.stride < 0 ||
        (run.count > 1 && run.stride < run.length) ||
        __builtin_mul_overflow(run.stride, run.count - 1, &last) ||
        __builtin_add_overflow(last, run.begin, &last) ||
        __builtin_add_overflow(last, run.length, &last) || last > numel ||
        __builtin_mul_overflow(run.length, run.count, &elements) ||
        __builtin_add_overflow(total, elements, &total) || total > numel) {
      return Concat("a run [", run.begin, ", ", run.length, ", ", run.stride, ", ", run.count,
                    "] does not lie in a tensor of ", numel, " elements");
    }
  }
  return "";
}

// Returns "", or what is wrong with the slices: together they must hold every element once.
std::string CheckTensor(const Manifest& manifest, const LogicalTensor& tensor,
                        const ParseBudget& budget) {
  const int64_t element = SafetensorsDTypeSize(tensor.dtype);
  if (element == 0) return Concat("unknown dtype \"", tensor.dtype, "\"");
  int64_t numel = 1, bytes = 0;
  for (const int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(numel, size, &numel)) return "its size overflows";
  }
  if (__builtin_mul_overflow(numel, element, &bytes)) return "its size overflows";
  int64_t held = 0;
  for (const Slice& slice : tensor.slices) {
    if (!manifest.files.contains(slice.file)) {
      return Concat("slice \"", slice.entry, "\" is in \"", slice.file, "\", which is not listed");
    }
    int64_t count = 0;
    if (const std::string why = CheckRuns(slice.runs, numel, count); !why.empty()) return why;
    if (__builtin_add_overflow(held, count, &held) || held > numel) {
      return "its slices hold more elements than it has";
    }
    const int64_t blocks = (count * element + kDigestBlockBytes - 1) / kDigestBlockBytes;
    if (static_cast<int64_t>(slice.digests.size()) != blocks) {
      return Concat("slice \"", slice.entry, "\" has ", slice.digests.size(), " digests, needs ",
                    blocks);
    }
  }
  if (held != numel) return Concat("its slices hold ", held, " of ", numel, " elements");
  // They hold as many elements as there are, so if they do not overlap they hold all. Counts may be
  // huge, and each segment takes a step below.
  constexpr int64_t kMaxSegments = 1 << 24;
  int64_t num_segments = 0;
  for (const Slice& slice : tensor.slices) {
    for (const Run& run : slice.runs) num_segments += run.count;
  }
  if (num_segments > kMaxSegments) return Concat("more than ", kMaxSegments, " segments");
  size_t num_runs = 0;
  for (const Slice& slice : tensor.slices) num_runs += slice.runs.size();
  if (!budget.Has(RunMerge::BytesFor(num_runs))) return "it has too many runs for so short a text";
  RunMerge merge;
  merge.Reserve(num_runs);
  for (const Slice& slice : tensor.slices) merge.Add(slice.runs);
  int64_t next = 0;
  for (RunPiece piece; merge.Next(piece);) {
    if (piece.begin < next) return Concat("its slices overlap at element ", piece.begin);
    next = piece.begin + piece.length;
  }
  return "";
}

}  // namespace

std::vector<Run> RunsOf(std::span<const Segment> segments) {
  std::vector<Run> runs;
  while (!segments.empty()) {
    if (segments[0].length == 0) {
      segments = segments.subspan(1);
      continue;
    }
    const Repeat repeat = LongestRepeat(segments);
    const bool forward = repeat.stride >= segments[0].length;
    const int64_t count = forward ? repeat.count : 1;
    runs.push_back({segments[0].begin, segments[0].length, count > 1 ? repeat.stride : 0, count});
    segments = segments.subspan(static_cast<size_t>(count));
  }
  return runs;
}

std::vector<Segment> SegmentsOf(std::span<const Run> runs) {
  std::vector<Segment> segments;
  for (const Run& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) {
      segments.push_back({run.begin + i * run.stride, run.length});
    }
  }
  return segments;
}

int64_t LogicalTensor::bytes() const {
  int64_t bytes = SafetensorsDTypeSize(dtype);
  for (const int64_t size : shape) bytes *= size;
  return bytes;
}

std::string FormatManifest(const Manifest& manifest) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["apogee_checkpoint"] = kManifestVersion;
  json["attributes"] = manifest.attributes;
  json["files"] = manifest.files;
  // An ordered object searches all of its fields for each new one, so collect them in a map first.
  std::map<std::string, Json> tensors;
  for (const auto& [name, tensor] : manifest.tensors) {
    Json& to = tensors[name];
    to["dtype"] = tensor.dtype;
    to["shape"] = tensor.shape;
    to["slices"] = Json::array();
    for (const Slice& slice : tensor.slices) {
      std::vector<int64_t> runs;
      for (const Run& run : slice.runs) {
        runs.insert(runs.end(), {run.begin, run.length, run.stride, run.count});
      }
      to["slices"].push_back({{"file", slice.file},
                              {"entry", slice.entry},
                              {"runs", runs},
                              {"digests", Hex(slice.digests)}});
    }
  }
  json["tensors"] = std::move(tensors);
  std::string text = json.dump();
  text.pop_back();
  return text + DigestField(XXH3_64bits(text.data(), text.size()));
}

absl::StatusOr<Manifest> ParseManifest(const std::string& json, const std::string& path) {
  ManifestParser parser(json.size());
  JsonReader reader(json);
  const bool parsed = reader.Read(parser);
  const std::string& why = reader.problem().empty() ? parser.problem : reader.problem();
  if (!HasItsDigest(json)) {
    return DataLoss(path,
                    ": the text does not have the digest at its end; it is damaged or was cut ",
                    "short", parsed ? "" : ": " + why);
  }
  // Only if the digest is right: a damaged version number is damage.
  if (parser.newer_version) {
    return absl::UnimplementedError(Concat(path, ": format version ", *parser.newer_version,
                                           ", this build reads ", kManifestVersion,
                                           "; load it with a newer release"));
  }
  if (!parsed) return DataLoss(path, ": byte ", reader.byte(), ": ", why);
  for (const auto& [name, tensor] : parser.manifest.tensors) {
    const std::string problem = CheckTensor(parser.manifest, tensor, parser.budget);
    if (!problem.empty()) return DataLoss(path, ": tensor \"", name, "\": ", problem);
  }
  return std::move(parser.manifest);
}

}  // namespace apogee::checkpoint
