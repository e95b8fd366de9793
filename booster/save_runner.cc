// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/save_runner.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "apogee/core/status.h"

namespace apogee {

SaveRunner::~SaveRunner() {
  // Objects that the caller's notice function uses may be gone, so print to stderr.
  receiver_ = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  const absl::Status status = Wait();
  if (!status.ok()) std::fprintf(stderr, "the last save failed: %s\n", Message(status).c_str());
}

void SaveRunner::TraceTo(TraceLane* caller, TraceLane* background) {
  caller_lane_ = caller;
  background_lane_ = background;
}

absl::Status SaveRunner::Run(bool use_async, const comm::GroupPtr& group, const Save& save,
                             checkpoint::BackgroundSaver::Write write) {
  if (saver_ == nullptr) saver_ = std::make_unique<checkpoint::BackgroundSaver>(group);
  if (!use_async) {
    const TraceSpan span(caller_lane_, "save", {.category = "checkpoint"});
    return write(saver_->group());
  }
  save->Snapshot();
  saver_->Start([write = std::move(write), lane = background_lane_](const comm::GroupPtr& own) {
    const TraceSpan span(lane, "save", {.category = "checkpoint"});
    return write(own);
  });
  return absl::OkStatus();
}

absl::Status SaveRunner::Wait() {
  if (saver_ == nullptr) return absl::OkStatus();
  absl::Status status = saver_->Wait();
  if (const auto notices = std::exchange(notices_, nullptr)) {
    std::ranges::for_each(*notices, receiver_);
  }
  return status;
}

void SaveRunner::Settle() const {
  if (saver_ != nullptr) saver_->Settle();
}

std::optional<absl::Status> SaveRunner::status() const {
  return saver_ == nullptr ? absl::OkStatus() : saver_->Peek();
}

SaveRunner::Notice SaveRunner::Keep(Notice receiver) {
  notices_ = std::make_shared<std::vector<std::string>>();
  receiver_ = std::move(receiver);
  return [notices = notices_](const std::string& text) { notices->push_back(text); };
}

}  // namespace apogee
