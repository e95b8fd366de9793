#include "apogee/comm/local/operation.h"

namespace apogee::comm::local {

void Operation::FinishShare() {
  std::lock_guard lock(mutex);
  if (--shares_left > 0) return;
  // Before anyone is told: a tensor must not live on in a thread that has yet to drop the
  // operation, or the peak of a ledger would depend on the scheduler.
  calls.clear();
  done = true;
  finished.notify_all();
}

void Operation::Fail(const std::string& message) {
  std::lock_guard lock(mutex);
  if (done) return;
  error = message;
  done = true;
  finished.notify_all();
}

bool Operation::IsDone() {
  std::lock_guard lock(mutex);
  return done;
}

bool Operation::WaitFor(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex);
  if (!finished.wait_for(lock, timeout, [this] { return done; })) return false;
  if (!error.empty()) throw CommError(error);
  return true;
}

std::string Describe(const CollectiveCall& call) {
  std::string text = CollectiveName(call.kind);
  const Tensor& tensor = call.input.defined() ? call.input : call.output;
  if (!tensor.defined()) return text;
  text += "(";
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce:
      text += call.op == ReduceOp::kSum ? "sum, " : "max, ";
      break;
    default:
      break;
  }
  switch (call.kind) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      text += "root " + std::to_string(call.root) + ", ";
      break;
    case CollectiveKind::kSend:
      text += "to " + std::to_string(call.root) + ", ";
      break;
    case CollectiveKind::kRecv:
      text += "from " + std::to_string(call.root) + ", ";
      break;
    default:
      break;
  }
  return text + std::to_string(tensor.numel()) + " x " + DTypeName(tensor.dtype()) + ")";
}

bool SameFingerprint(const CollectiveCall& a, const CollectiveCall& b) {
  const bool point_to_point = a.kind == CollectiveKind::kSend || a.kind == CollectiveKind::kRecv;
  if (!point_to_point && (a.kind != b.kind || a.op != b.op || a.root != b.root)) return false;
  const Tensor& x = a.input.defined() ? a.input : a.output;
  const Tensor& y = b.input.defined() ? b.input : b.output;
  if (x.defined() != y.defined()) return false;
  return !x.defined() || (x.dtype() == y.dtype() && x.numel() == y.numel());
}

}  // namespace apogee::comm::local
