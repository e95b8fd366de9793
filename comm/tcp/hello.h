// What two processes of a job say first on a connection: the one that connects who it is, the one
// that was called whether that can be. Of fixed sizes, so that nothing that a stranger sends makes
// anybody read more. Private to comm/tcp.
//
//   WriteAll(socket, BytesOf(MakeHello(job, machine, port)), deadline);
//   ...
//   if (const auto guest = HelloFrom(bytes, job.token)) ...   // of this job
#ifndef APOGEE_COMM_TCP_HELLO_H_
#define APOGEE_COMM_TCP_HELLO_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "apogee/comm/tcp/job.h"

namespace apogee::comm::tcp {

// Changes with the protocol, so that programs of two versions refuse each other.
inline constexpr char kMagic[9] = "APOGEE01";

// As they lie in memory: all processes run on one kind of machine, as under MPI.
struct Hello {
  char magic[8];
  int32_t rank, size;
  uint32_t port;  // where this process listens; 0: nowhere
  uint32_t token_bytes;
  char token[Job::kMaxTokenBytes];
  char machine[320];  // ends with a zero, as all text here
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

Hello MakeHello(const Job& job, const std::string& machine, uint16_t port);
Answer MakeAnswer(const absl::Status& status);
// Whether bytes may be the begin of a Hello.
bool MayBeHello(std::string_view bytes);
// Nothing without the token.
std::optional<Hello> HelloFrom(std::string_view bytes, const std::string& token);
// The status that was sent; FailedPrecondition for bytes that are no answer.
absl::Status StatusOf(const Answer& answer);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_HELLO_H_
