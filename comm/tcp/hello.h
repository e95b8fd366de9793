// SPDX-License-Identifier: Apache-2.0

// What two processes of a job say first on a connection. Of fixed sizes, so that nothing that a
// stranger sends makes anybody read more. Private to comm/tcp.
//
//   the one that connects                 the one that was called
//   Call: which rank, to which, a nonce
//                                         Challenge: a nonce of its own
//   Hello: where it listens
//                                         Answer: whether it can be (reception.h, meeting.h)
//
// Each of the first three ends with a proof that its sender knows the job's token (proof.h), over
// the message and all those before it. The token itself is never sent. A message that was recorded
// proves nothing to a peer, for it has another nonce; one that is sent back to its sender proves
// nothing either, for each kind has a label of its own and a call names the rank that it is for.
// What comes later on the connection is not proved (docs/launch.md).
#ifndef APOGEE_COMM_TCP_HELLO_H_
#define APOGEE_COMM_TCP_HELLO_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "apogee/comm/tcp/job.h"
#include "apogee/comm/tcp/proof.h"

namespace apogee::comm::tcp {

// Changes with the protocol, so that programs of two versions refuse each other.
inline constexpr char kMagic[9] = "APOGEE02";
// What all versions begin with.
inline constexpr std::string_view kMagicOfAll = "APOGEE";

// As they lie in memory: all processes run on one kind of machine, as under MPI. `proof` is last.
struct Call {
  char magic[8];
  int32_t rank, size;
  int32_t to;  // the rank that is called
  Nonce nonce;
  Proof proof;
};
struct Challenge {
  char magic[8];
  Nonce nonce;
  Proof proof;
};
struct Hello {
  uint32_t port;      // where this process listens; 0: nowhere
  char machine[320];  // ends with a zero, as all text here
  Proof proof;
};
struct Answer {
  char magic[8];
  uint32_t code;  // of absl::Status
  char text[1012];
};
// Rank 0 says for every rank, after a good answer:
struct Place {
  uint32_t port;
  char address[92];
  char machine[320];
};

template <typename T>
std::string_view BytesOf(const T& value) {
  static_assert(std::has_unique_object_representations_v<T>, "no bytes between the fields");
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
template <typename T>
T FromBytes(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// Copies what fits.
template <size_t kSize>
void SetText(char (&field)[kSize], std::string_view text) {
  std::memset(field, 0, kSize);
  std::memcpy(field, text.data(), std::min(text.size(), kSize - 1));
}
// Also of a field that a peer has not ended.
template <size_t kSize>
std::string TextOf(const char (&field)[kSize]) {
  return std::string(field, strnlen(field, kSize));
}

Call MakeCall(const Job& job, int to);
Challenge MakeChallenge(const Job& job, const Call& call);
Hello MakeHello(const Job& job, const Call& call, const Challenge& challenge,
                const std::string& machine, uint16_t port);
Answer MakeAnswer(const absl::Status& status);

// Whether bytes may be the begin of a Call.
bool MayBeCall(std::string_view bytes);
// The version that bytes begin with, where it is another than this; empty else.
std::string OtherVersion(std::string_view bytes);

// Whether a process with the job's token has called this rank. What it says of its rank and of the
// job's size may be wrong.
bool IsCall(const Call& call, const Job& job);
// FailedPrecondition, with the reason, where the called one does not prove that it is of the job.
absl::Status CheckChallenge(const Challenge& challenge, const Call& call, const Job& job);
bool IsHello(const Hello& hello, const Call& call, const Challenge& challenge, const Job& job);
// The status that was sent; FailedPrecondition for bytes that are no answer.
absl::Status StatusOf(const Answer& answer);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_HELLO_H_
