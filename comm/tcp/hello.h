// SPDX-License-Identifier: Apache-2.0

// The first messages of two processes of a job on a connection. They have fixed sizes, so that a
// stranger cannot make a process read more. Private to comm/tcp.
//
//   the process that connects             the process that was called
//   Call: its rank, the called rank, a nonce
//                                         Challenge: a nonce of its own
//   Hello: where it listens
//                                         Answer: accepted or refused (reception.h, meeting.h)
//
// Each of the first three ends with a proof that its sender knows the job's token (proof.h). The
// proof covers the message and all those before it. The token itself is never sent. A recorded
// message proves nothing to a peer, because the peer uses another nonce. A message that is sent
// back to its sender proves nothing either, because each kind of message has its own label, and a
// call names the rank that it is for. Later data on the connection is not proved
// (docs/launch/tcp.md).
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

// Changes with the protocol, so that programs of different versions refuse each other.
inline constexpr char kMagic[9] = "APOGEE02";
// The common beginning of all versions.
inline constexpr std::string_view kMagicOfAll = "APOGEE";

// As in memory: all processes run on the same kind of machine, as under MPI. `proof` comes last.
struct Call {
  char magic[8];
  int32_t rank, size;
  int32_t to;  // the called rank
  Nonce nonce;
  Proof proof;
};
struct Challenge {
  char magic[8];
  Nonce nonce;
  Proof proof;
};
struct Hello {
  uint32_t port;      // where this process listens; 0: it does not
  char machine[320];  // ends with a zero, as all text here
  Proof proof;
};
struct Answer {
  char magic[8];
  uint32_t code;  // of absl::Status
  char text[1012];
};
// After a positive answer, rank 0 sends one of these for every rank.
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

// Copies as much of `text` as fits.
template <size_t kSize>
void SetText(char (&field)[kSize], std::string_view text) {
  std::memset(field, 0, kSize);
  std::memcpy(field, text.data(), std::min(text.size(), kSize - 1));
}
// Also for a field that a peer has not terminated.
template <size_t kSize>
std::string TextOf(const char (&field)[kSize]) {
  return std::string(field, strnlen(field, kSize));
}

Call MakeCall(const Job& job, int to);
Challenge MakeChallenge(const Job& job, const Call& call);
Hello MakeHello(const Job& job, const Call& call, const Challenge& challenge,
                const std::string& machine, uint16_t port);
Answer MakeAnswer(const absl::Status& status);

// Whether the bytes may be the beginning of a Call.
bool MayBeCall(std::string_view bytes);
// The version that the bytes begin with, if it is not this one; else "".
std::string OtherVersion(std::string_view bytes);

// Whether the call comes from a process with the job's token and is for this rank. The caller's
// rank and its size of the job may still be wrong.
bool IsCall(const Call& call, const Job& job);
// Returns FailedPrecondition, with the reason, if the called process does not prove that it belongs
// to the job.
absl::Status CheckChallenge(const Challenge& challenge, const Call& call, const Job& job);
bool IsHello(const Hello& hello, const Call& call, const Challenge& challenge, const Job& job);
// The status that was sent. FailedPrecondition if the bytes are not an answer.
absl::Status StatusOf(const Answer& answer);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_HELLO_H_
