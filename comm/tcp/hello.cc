#include "apogee/comm/tcp/hello.h"

#include <algorithm>

namespace apogee::comm::tcp {

Hello MakeHello(const Job& job, const std::string& machine, uint16_t port) {
  Hello hello = {};
  std::memcpy(hello.magic, kMagic, sizeof(hello.magic));
  hello.rank = job.rank;
  hello.size = job.size;
  hello.port = port;
  hello.token_bytes = static_cast<uint32_t>(job.token.size());
  std::memcpy(hello.token, job.token.data(), job.token.size());
  SetText(hello.machine, machine);
  return hello;
}

Answer MakeAnswer(const absl::Status& status) {
  Answer answer = {};
  std::memcpy(answer.magic, kMagic, sizeof(answer.magic));
  answer.code = static_cast<uint32_t>(status.code());
  SetText(answer.text, Message(status));
  return answer;
}

bool MayBeHello(std::string_view bytes) {
  const std::string_view begin = bytes.substr(0, sizeof(Hello::magic));
  return std::string_view(kMagic).starts_with(begin);
}

std::optional<Hello> HelloFrom(std::string_view bytes, const std::string& token) {
  if (bytes.size() != sizeof(Hello) || !MayBeHello(bytes)) return std::nullopt;
  const auto hello = FromBytes<Hello>(bytes);
  if (hello.token_bytes != token.size()) return std::nullopt;
  // The time that this takes must not tell how many bytes are right.
  int difference = 0;
  for (size_t i = 0; i < token.size(); ++i) difference |= hello.token[i] ^ token[i];
  return difference == 0 ? std::optional<Hello>(hello) : std::nullopt;
}

absl::Status StatusOf(const Answer& answer) {
  if (std::memcmp(answer.magic, kMagic, sizeof(answer.magic)) != 0) {
    return absl::FailedPreconditionError("its answer is none of a rank of this library's version");
  }
  return absl::Status(static_cast<absl::StatusCode>(answer.code), TextOf(answer.text));
}

}  // namespace apogee::comm::tcp
