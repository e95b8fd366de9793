// SPDX-License-Identifier: Apache-2.0

// Connection: sends frames to and receives frames from one other process over one socket. No call
// blocks. Private to comm/tcp.
//
//   Connection connection(std::move(socket));
//   connection.Send(tag, data, bytes, /*id=*/7);
//   connection.Receive(tag, buffer, bytes, /*id=*/8);
//   connection.Write(completed);                  // as much as the socket accepts
//   connection.Read(messages, completed);         // as much as has arrived
//   if (!connection.is_open()) ... connection.why()
//
// Data is read straight into the memory given to Receive. Data that arrives before its Receive is
// kept. It is bounded, because a peer sends only data for which this process has announced a call.
#ifndef APOGEE_COMM_TCP_CONNECTION_H_
#define APOGEE_COMM_TCP_CONNECTION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/comm/tcp/socket.h"

namespace apogee::comm::tcp {

enum class FrameKind : uint32_t { kMessage = 1, kData, kGoodbye, kAbort };

// Comes before the bytes of a frame. `tag`: the tag of data, or the exit code of an abort.
struct FrameHeader {
  FrameKind kind;
  int32_t tag;
  uint64_t bytes;
};

class Connection {
 public:
  static constexpr int kMaxTag = INT32_MAX;

  explicit Connection(Socket socket);
  Connection(Connection&&) = default;

  int fd() const { return socket_.fd(); }
  bool is_open() const { return socket_.is_open(); }
  // Why the connection is closed.
  const std::string& why() const { return why_; }
  void Close(const std::string& why);

  void Post(FrameKind kind, int32_t tag, std::string bytes);
  void Send(int tag, const void* data, int64_t bytes, uint64_t id);
  // Returns the id if the data has already arrived.
  std::optional<uint64_t> Receive(int tag, void* data, int64_t bytes, uint64_t id);

  bool has_unsent() const { return !outgoing_.empty(); }
  // Both return whether any bytes have moved. An error closes the connection.
  bool Write(std::vector<uint64_t>& completed);
  bool Read(std::vector<std::string>& messages, std::vector<uint64_t>& completed);
  // Whether the peer has announced that it will send nothing more.
  bool has_said_goodbye() const { return goodbye_; }
  // The exit code with which the peer ends the job.
  std::optional<int> aborted() const { return aborted_; }

 private:
  struct Outgoing {
    FrameHeader header;
    std::string bytes;           // of a message
    const char* data = nullptr;  // of other frames
    std::optional<uint64_t> id;
  };
  struct Posted {
    char* data;
    int64_t bytes;
    uint64_t id;
  };
  using Bytes = std::vector<char>;
  // The frame whose body is being read.
  struct Incoming {
    FrameHeader header;
    char* body;
    size_t left;
    std::optional<uint64_t> id;  // of its Receive
    Bytes kept;                  // the body, if no Receive has given memory for it
  };

  void Begin(const FrameHeader& header);
  void Complete(std::vector<std::string>& messages, std::vector<uint64_t>& completed);
  // Takes frames from the buffer.
  void Parse(std::vector<std::string>& messages, std::vector<uint64_t>& completed);

  Socket socket_;
  std::string why_;
  std::deque<Outgoing> outgoing_;
  size_t sent_ = 0;  // bytes already sent of the first in outgoing_
  std::map<int, std::deque<Posted>> posted_;
  std::map<int, std::deque<Bytes>> early_;
  std::optional<Incoming> incoming_;
  Bytes buffer_;
  size_t begin_ = 0, end_ = 0;  // the unread bytes in buffer_
  bool goodbye_ = false;
  std::optional<int> aborted_;
};

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_CONNECTION_H_
