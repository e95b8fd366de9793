// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the first words on a connection, from anybody who can call.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "apogee/comm/tcp/hello.h"

namespace {

using namespace apogee::comm::tcp;

// The bytes, cut to the message's size or filled up with zeros, as a message.
template <typename T>
T As(std::string_view bytes) {
  std::string whole(bytes.substr(0, sizeof(T)));
  whole.resize(sizeof(T), '\0');
  return FromBytes<T>(whole);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Job& job = *new Job{.rank = 1, .size = 3, .token = "not in any input"};
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string other = OtherVersion(bytes);
  if (!other.empty() && (other.size() != sizeof(Call::magic) || MayBeCall(bytes))) __builtin_trap();
  const auto call = As<Call>(bytes);
  const auto challenge = As<Challenge>(bytes);
  const auto hello = As<Hello>(bytes);
  // None of them proves anything.
  if (IsCall(call, job) || CheckChallenge(challenge, call, job).ok() ||
      IsHello(hello, call, challenge, job)) {
    __builtin_trap();
  }
  if (TextOf(hello.machine).size() > sizeof(hello.machine)) __builtin_trap();
  const absl::Status status = StatusOf(As<Answer>(bytes));
  if (status.message().size() > sizeof(Answer::text)) __builtin_trap();
  const auto place = As<Place>(bytes);
  if (TextOf(place.address).size() > sizeof(place.address)) __builtin_trap();
  return 0;
}
