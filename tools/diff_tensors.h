// SPDX-License-Identifier: Apache-2.0

// DiffTensors: compares the tensors of two stores, bit for bit.
//
//   APOGEE_ASSIGN_OR_RETURN(const TensorsDiff diff,
//                           DiffTensors({&a, "run/a"}, {&b, "run/b"}, {.limit = 10}));
//   diff.Print(std::cout);
//
// Errors: those of TensorStore::Load.
#ifndef APOGEE_TOOLS_DIFF_TENSORS_H_
#define APOGEE_TOOLS_DIFF_TENSORS_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "apogee/tools/tensor_store.h"

namespace apogee::tools {

struct DiffSide {
  const TensorStore* store;
  std::string label;
};

struct DiffTensorsOptions {
  // The number of differing tensors to describe; all are counted.
  int64_t limit = 10;
  // Both sides at an earlier step. If set, errors are also given relative to the largest |a -
  // before|: a weight changes little per step, so an error relative to its size says little.
  const TensorStore* before = nullptr;
  std::string before_label = {};
};

struct TensorsDiff {
  int64_t equal = 0, different = 0, missing = 0;
  std::vector<std::string> lines;  // by name, printable

  bool same() const { return different + missing == 0; }
  // Prints the lines, the number of lines left out, and the counts.
  void Print(std::ostream& out, const std::string& indent = "") const;
};

absl::StatusOr<TensorsDiff> DiffTensors(const DiffSide& a, const DiffSide& b,
                                        const DiffTensorsOptions& options);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DIFF_TENSORS_H_
