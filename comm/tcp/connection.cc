// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "apogee/comm/transport/transport.h"

namespace apogee::comm::tcp {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
// Limits of frames per system call and of calls per Write or Read: other peers wait meanwhile.
constexpr size_t kMaxFrames = 16;
constexpr int kMaxCalls = 8;

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// Returns "" for a valid header, else what is wrong.
std::string Objection(const FrameHeader& header) {
  switch (header.kind) {
    case FrameKind::kMessage:
      if (header.bytes <= Transport::kMaxMessageBytes) return "";
      break;
    case FrameKind::kData:
      if (header.tag > 0 && header.bytes <= INT32_MAX) return "";
      break;
    case FrameKind::kGoodbye:
      if (header.bytes == 0) return "";
      break;
    case FrameKind::kAbort:
      if (header.bytes == 0 && header.tag >= 0 && header.tag <= 255) return "";
      break;
  }
  return internal::Concat("it sent something that is not a frame: kind ",
                          static_cast<uint32_t>(header.kind), ", tag ", header.tag, ", ",
                          header.bytes, " bytes");
}

}  // namespace

Connection::Connection(Socket socket) : socket_(std::move(socket)), buffer_(kBufferBytes) {}

void Connection::Close(const std::string& why) {
  if (!is_open()) return;
  socket_.Close();
  why_ = why;
  outgoing_.clear();
}

void Connection::Post(FrameKind kind, int32_t tag, std::string bytes) {
  if (!is_open()) return;
  const FrameHeader header{.kind = kind, .tag = tag, .bytes = bytes.size()};
  outgoing_.push_back({.header = header, .bytes = std::move(bytes), .id = {}});
}

void Connection::Send(int tag, const void* data, int64_t bytes, uint64_t id) {
  if (!is_open()) return;
  const FrameHeader header{
      .kind = FrameKind::kData, .tag = tag, .bytes = static_cast<uint64_t>(bytes)};
  outgoing_.push_back(
      {.header = header, .bytes = {}, .data = static_cast<const char*>(data), .id = id});
}

std::optional<uint64_t> Connection::Receive(int tag, void* data, int64_t bytes, uint64_t id) {
  const auto early = early_.find(tag);
  if (early == early_.end()) {
    posted_[tag].push_back({static_cast<char*>(data), bytes, id});
    return std::nullopt;
  }
  const Bytes kept = std::move(early->second.front());
  early->second.pop_front();
  if (early->second.empty()) early_.erase(early);
  APOGEE_CHECK(kept.size() == static_cast<size_t>(bytes), "tag ", tag, ": ", kept.size(),
               " bytes came where ", bytes, " were expected");
  std::copy(kept.begin(), kept.end(), static_cast<char*>(data));
  return id;
}

bool Connection::Write(std::vector<uint64_t>& completed) {
  bool moved = false;
  for (int call = 0; call < kMaxCalls && !outgoing_.empty(); ++call) {
    std::array<iovec, 2 * kMaxFrames> parts;
    size_t count = 0, skip = sent_;
    const auto add = [&](const void* data, size_t bytes) {
      const size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes == skipped) return;
      char* begin = const_cast<char*>(static_cast<const char*>(data)) + skipped;
      parts[count++] = {.iov_base = begin, .iov_len = bytes - skipped};
    };
    for (size_t i = 0; i < outgoing_.size() && i < kMaxFrames; ++i) {
      const Outgoing& frame = outgoing_[i];
      add(&frame.header, sizeof(frame.header));
      add(frame.data != nullptr ? frame.data : frame.bytes.data(), frame.header.bytes);
    }
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t wrote = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      // Data that the peer sent before it closed must still be read: Read closes.
      if (!WouldBlock() && errno != EPIPE && errno != ECONNRESET) Close(std::strerror(errno));
      break;
    }
    moved = true;
    sent_ += static_cast<size_t>(wrote);
    while (!outgoing_.empty() && sent_ >= sizeof(FrameHeader) + outgoing_[0].header.bytes) {
      sent_ -= sizeof(FrameHeader) + outgoing_[0].header.bytes;
      if (outgoing_[0].id) completed.push_back(*outgoing_[0].id);
      outgoing_.pop_front();
    }
  }
  return moved;
}

void Connection::Begin(const FrameHeader& header) {
  if (const std::string objection = Objection(header); !objection.empty()) return Close(objection);
  incoming_.emplace(
      Incoming{.header = header, .body = nullptr, .left = header.bytes, .id = {}, .kept = {}});
  const auto posted = posted_.find(header.tag);
  if (header.kind == FrameKind::kData && posted != posted_.end()) {
    const Posted place = posted->second.front();
    posted->second.pop_front();
    if (posted->second.empty()) posted_.erase(posted);
    if (static_cast<uint64_t>(place.bytes) != header.bytes) {
      return Close(internal::Concat("it sent ", header.bytes, " bytes under tag ", header.tag,
                                    ", where ", place.bytes, " were expected"));
    }
    incoming_->body = place.data;
    incoming_->id = place.id;
  } else {
    incoming_->kept.resize(header.bytes);
    incoming_->body = incoming_->kept.data();
  }
}

void Connection::Complete(std::vector<std::string>& messages, std::vector<uint64_t>& completed) {
  Incoming frame = std::move(*incoming_);
  incoming_.reset();
  switch (frame.header.kind) {
    case FrameKind::kMessage:
      messages.emplace_back(frame.kept.begin(), frame.kept.end());
      return;
    case FrameKind::kGoodbye:
      goodbye_ = true;
      return;
    case FrameKind::kAbort:
      aborted_ = frame.header.tag;
      return;
    case FrameKind::kData:
      break;
  }
  if (frame.id) return completed.push_back(*frame.id);
  early_[frame.header.tag].push_back(std::move(frame.kept));
  // Its Receive may have been called while the body was being read.
  const auto posted = posted_.find(frame.header.tag);
  if (posted == posted_.end()) return;
  const Posted place = posted->second.front();
  posted->second.pop_front();
  if (posted->second.empty()) posted_.erase(posted);
  completed.push_back(*Receive(frame.header.tag, place.data, place.bytes, place.id));
}

void Connection::Parse(std::vector<std::string>& messages, std::vector<uint64_t>& completed) {
  while (is_open()) {
    if (!incoming_) {
      if (end_ - begin_ < sizeof(FrameHeader)) break;
      FrameHeader header;
      std::memcpy(&header, buffer_.data() + begin_, sizeof(header));
      begin_ += sizeof(header);
      Begin(header);
      continue;
    }
    const size_t count = std::min(incoming_->left, end_ - begin_);
    std::copy_n(buffer_.data() + begin_, count, incoming_->body);
    begin_ += count;
    incoming_->body += count;
    incoming_->left -= count;
    if (incoming_->left > 0) break;
    Complete(messages, completed);
  }
  std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_),
            buffer_.begin() + static_cast<ptrdiff_t>(end_), buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
}

bool Connection::Read(std::vector<std::string>& messages, std::vector<uint64_t>& completed) {
  bool moved = false;
  for (int call = 0; call < kMaxCalls && is_open(); ++call) {
    // Reads the rest of a body into its place, and the bytes after it into the buffer, which is
    // empty then.
    const size_t left = incoming_ ? incoming_->left : 0;
    std::array<iovec, 2> parts;
    parts[0] = {.iov_base = left > 0 ? incoming_->body : nullptr, .iov_len = left};
    parts[1] = {.iov_base = buffer_.data() + end_, .iov_len = buffer_.size() - end_};
    const size_t asked = left + parts[1].iov_len;
    const ssize_t count = readv(fd(), parts.data(), 2);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && WouldBlock()) break;
    if (count <= 0) {
      Close(count == 0 ? "the connection was closed" : std::strerror(errno));
      return true;
    }
    moved = true;
    const size_t in_place = std::min(left, static_cast<size_t>(count));
    if (left > 0) {
      incoming_->body += in_place;
      incoming_->left -= in_place;
    }
    end_ += static_cast<size_t>(count) - in_place;
    Parse(messages, completed);
    if (static_cast<size_t>(count) < asked) break;
  }
  return moved;
}

}  // namespace apogee::comm::tcp
