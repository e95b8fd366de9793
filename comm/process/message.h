// SPDX-License-Identifier: Apache-2.0

// Message: the messages between the processes of a job, besides tensors. Private to comm/process.
#ifndef APOGEE_COMM_PROCESS_MESSAGE_H_
#define APOGEE_COMM_PROCESS_MESSAGE_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "apogee/comm/fingerprint.h"

namespace apogee::comm::process {

enum class MessageKind : uint8_t {
  kCall,     // "I have called this": to the other members, before any data
  kFailed,   // "this group has failed, because": to the other members
  kAwaited,  // "I have waited for rank `tag` for the timeout": to every process
  kLeft,     // "my function has ended": to every process
  kExit,     // "my process is about to end": to every process
  kPing,     // "are you there?"
  kPong,     // `tag`: milliseconds since the function last called a collective; -1: it is waiting
  kGivenUp,  // "I have given you up, because": to a process that may be stopped, for its wake-up
};

// How a rank's function ended.
enum class Ending : uint8_t { kReturned, kThrew, kEcho };  // kEcho: threw because of a peer

// Operations that are matched by number: those of a whole group, or those from one member to
// another. A hash of the group's name stands for the group, because the name lists all members.
struct Channel {
  uint64_t group = 0;
  int32_t sender = -1, receiver = -1;  // ranks of the group
  friend auto operator<=>(const Channel&, const Channel&) = default;
};

// Takes the place of a call's number if a group has failed on the device.
inline constexpr int64_t kOnDevice = -1;

struct Message {
  MessageKind kind = MessageKind::kPing;
  Ending ending = Ending::kReturned;
  uint32_t session = 0;  // which launch of the process
  Channel channel = {};
  int64_t sequence = 0;
  Fingerprint fingerprint = {};
  int32_t tag = 0;  // the tag under which the caller waits for data, or as the kind says
  // The data itself if it is small; or the reason why a group failed or a rank left.
  std::string text = {};
};

// The most bytes of `text`; Encode cuts off the rest.
size_t MaxTextBytes();
std::string Encode(const Message& message);
// Returns std::nullopt for bytes that Encode did not write.
std::optional<Message> Decode(std::string bytes);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_MESSAGE_H_
