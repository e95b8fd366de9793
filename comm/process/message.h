// SPDX-License-Identifier: Apache-2.0

// What the processes of a job tell each other beside the tensors. Private to comm/process.
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
  kPong,     // `tag`: the milliseconds for which the function has called nothing; -1: it waits
  kGivenUp,  // "I have given you up, because": to one that may be stopped, for when it wakes up
};

// How a rank's function ended.
enum class Ending : uint8_t { kReturned, kThrew, kEcho };  // kEcho: threw what a peer had caused

// Operations that are matched by number: those of a whole group, or those from one member to
// another. Groups go by a hash of their name, which is as long as the list of their members.
struct Channel {
  uint64_t group = 0;
  int32_t sender = -1, receiver = -1;  // ranks of the group
  friend auto operator<=>(const Channel&, const Channel&) = default;
};

// Instead of a call's number, of a group that has failed on the device.
inline constexpr int64_t kOnDevice = -1;

struct Message {
  MessageKind kind = MessageKind::kPing;
  Ending ending = Ending::kReturned;
  uint32_t session = 0;  // which launch of the process
  Channel channel = {};
  int64_t sequence = 0;
  Fingerprint fingerprint = {};
  int32_t tag = 0;  // under which the caller waits for data, or as the kind says
  // The data itself where it is small; why a group failed or a rank left.
  std::string text = {};
};

// Room for `text`; Encode cuts the end off what is longer.
size_t MaxTextBytes();
std::string Encode(const Message& message);
// Nothing for bytes that no Encode wrote.
std::optional<Message> Decode(std::string bytes);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_MESSAGE_H_
