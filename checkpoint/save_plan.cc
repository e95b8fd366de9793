// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/save_plan.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/format/safetensors_header.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/checkpoint/names.h"
#include "apogee/core/text/json_reader.h"
#include "apogee/core/text/utf8.h"

namespace apogee::checkpoint {
namespace {

// Describes the parts to the other ranks, a line each: name bytes, name, dtype, rank, shape, runs.
std::string Describe(const std::vector<TensorPart>& parts) {
  std::ostringstream text;
  for (const TensorPart& part : parts) {
    const Shape& shape = part.layout.logical_shape();
    text << part.name.size() << ' ' << part.name << ' ' << SafetensorsDType(part.value.dtype())
         << ' ' << shape.rank();
    for (int dim = 0; dim < shape.rank(); ++dim) text << ' ' << shape[dim];
    const std::vector<Run> runs = RunsOf(part.layout.segments());
    text << ' ' << runs.size();
    for (const Run& run : runs) {
      text << ' ' << run.begin << ' ' << run.length << ' ' << run.stride << ' ' << run.count;
    }
    text << '\n';
  }
  return text.str();
}

struct Described {
  std::string name;
  LogicalTensor tensor;  // with one slice, or none if the rank holds no elements
};

// Reads the text of Describe, which comes from a rank of this program.
std::vector<Described> Read(const std::string& text) {
  std::istringstream in(text);
  std::vector<Described> all;
  for (size_t name_bytes = 0; in >> name_bytes;) {
    Described part;
    in.get();
    part.name.resize(name_bytes);
    in.read(part.name.data(), static_cast<std::streamsize>(name_bytes));
    size_t rank = 0, num_runs = 0;
    in >> part.tensor.dtype >> rank;
    part.tensor.shape.resize(rank);
    for (int64_t& size : part.tensor.shape) in >> size;
    in >> num_runs;
    Slice slice;
    slice.entry = part.name;
    slice.runs.resize(num_runs);
    for (Run& run : slice.runs) in >> run.begin >> run.length >> run.stride >> run.count;
    if (num_runs > 0) part.tensor.slices.push_back(std::move(slice));
    all.push_back(std::move(part));
  }
  return all;
}

// A slice, and the ranks that hold it.
struct Candidate {
  Slice slice;
  std::vector<int> ranks;
};

}  // namespace

std::string RankFileName(int rank) {
  char name[32];
  std::snprintf(name, sizeof(name), "rank-%05d.safetensors", rank);
  return name;
}

absl::StatusOr<SavePlan> MakeSavePlan(const std::vector<TensorPart>& parts,
                                      const comm::GroupPtr& group) {
  const std::vector<std::string> texts = GatherTexts(Describe(parts), group);
  SavePlan plan;
  plan.written_by.resize(texts.size());
  std::map<std::string, std::vector<Candidate>> candidates;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    for (Described& part : Read(texts[rank])) {
      // Otherwise only the rank that writes it would find out.
      if (!IsTensorName(part.name) || !IsUtf8(part.name)) {
        return InvalidArgument("save: \"", Shortened(part.name),
                               "\" cannot be the name of a tensor: names are UTF-8, of 1 to ",
                               kMaxNameBytes, " bytes, without NUL");
      }
      LogicalTensor& tensor = plan.tensors[part.name];
      if (tensor.dtype.empty()) {
        tensor.dtype = part.tensor.dtype;
        tensor.shape = part.tensor.shape;
      }
      if (tensor.dtype != part.tensor.dtype || tensor.shape != part.tensor.shape) {
        return InvalidArgument("save: ranks disagree about the dtype or shape of \"", part.name,
                               "\"");
      }
      if (part.tensor.slices.empty()) continue;
      std::vector<Candidate>& known = candidates[part.name];
      const auto same = std::ranges::find_if(known, [&](const Candidate& candidate) {
        return candidate.slice.runs == part.tensor.slices[0].runs;
      });
      if (same != known.end()) {
        same->ranks.push_back(static_cast<int>(rank));
      } else {
        known.push_back({std::move(part.tensor.slices[0]), {static_cast<int>(rank)}});
      }
    }
  }
  // Of the ranks that hold a slice, the one with the fewest bytes so far writes it.
  const int me = group == nullptr ? 0 : group->rank();
  std::map<std::string, size_t> index_of;
  for (size_t i = 0; i < parts.size(); ++i) index_of[parts[i].name] = i;
  std::vector<int64_t> bytes(texts.size(), 0);
  for (auto& [name, slices] : candidates) {
    LogicalTensor& tensor = plan.tensors[name];
    for (Candidate& candidate : slices) {
      const int writer = *std::ranges::min_element(
          candidate.ranks, {}, [&](int rank) { return bytes[static_cast<size_t>(rank)]; });
      bytes[static_cast<size_t>(writer)] +=
          candidate.slice.numel() * SafetensorsDTypeSize(tensor.dtype);
      candidate.slice.file = RankFileName(writer);
      plan.written_by[static_cast<size_t>(writer)].emplace_back(name, tensor.slices.size());
      if (writer == me) plan.mine.push_back(index_of.at(name));
      tensor.slices.push_back(std::move(candidate.slice));
    }
  }
  return plan;
}

}  // namespace apogee::checkpoint
