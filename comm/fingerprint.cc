// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/fingerprint.h"

namespace apogee::comm {

Fingerprint::Fingerprint(const CollectiveCall& call)
    : kind(call.kind), op(call.op), root(call.root) {
  const Tensor& tensor = call.input.defined() ? call.input : call.output;
  has_tensor = tensor.defined();
  if (!has_tensor) return;
  dtype = tensor.dtype();
  numel = call.input_counts.empty() ? tensor.numel() : kUneven;
  on_gpu = !tensor.context()->is_host();
}

std::string Fingerprint::ToString() const {
  std::string text = CollectiveName(kind);
  if (!has_tensor) return text;
  text += "(";
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce:
      text += op == ReduceOp::kSum ? "sum, " : "max, ";
      break;
    default:
      break;
  }
  switch (kind) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      text += "root " + std::to_string(root) + ", ";
      break;
    case CollectiveKind::kSend:
      text += "to " + std::to_string(root) + ", ";
      break;
    case CollectiveKind::kRecv:
      text += "from " + std::to_string(root) + ", ";
      break;
    default:
      break;
  }
  const std::string count = numel == kUneven ? "unequal parts" : std::to_string(numel);
  return text + count + " x " + DTypeName(dtype) + ")";
}

bool Fingerprint::Matches(const Fingerprint& other) const {
  const auto point_to_point = [](CollectiveKind k) {
    return k == CollectiveKind::kSend || k == CollectiveKind::kRecv;
  };
  if (!point_to_point(kind) && (kind != other.kind || op != other.op || root != other.root)) {
    return false;
  }
  if (has_tensor != other.has_tensor) return false;
  return !has_tensor || (dtype == other.dtype && numel == other.numel);
}

}  // namespace apogee::comm
