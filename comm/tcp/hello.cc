// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/hello.h"

#include <algorithm>

namespace apogee::comm::tcp {
namespace {

constexpr std::string_view kCall = "call", kChallenge = "challenge", kHello = "hello";

// All bytes but the proof, which comes last.
template <typename T>
std::string_view Said(const T& message) {
  return BytesOf(message).substr(0, sizeof(T) - sizeof(Proof));
}

}  // namespace

Call MakeCall(const Job& job, int to) {
  Call call = {};
  std::memcpy(call.magic, kMagic, sizeof(call.magic));
  call.rank = job.rank;
  call.size = job.size;
  call.to = to;
  call.nonce = NewNonce();
  call.proof = Prove(job.token, kCall, {Said(call)});
  return call;
}

Challenge MakeChallenge(const Job& job, const Call& call) {
  Challenge challenge = {};
  std::memcpy(challenge.magic, kMagic, sizeof(challenge.magic));
  challenge.nonce = NewNonce();
  challenge.proof = Prove(job.token, kChallenge, {BytesOf(call), Said(challenge)});
  return challenge;
}

Hello MakeHello(const Job& job, const Call& call, const Challenge& challenge,
                const std::string& machine, uint16_t port) {
  Hello hello = {};
  hello.port = port;
  SetText(hello.machine, machine);
  hello.proof = Prove(job.token, kHello, {BytesOf(call), BytesOf(challenge), Said(hello)});
  return hello;
}

Answer MakeAnswer(const absl::Status& status) {
  Answer answer = {};
  std::memcpy(answer.magic, kMagic, sizeof(answer.magic));
  answer.code = static_cast<uint32_t>(status.code());
  SetText(answer.text, Message(status));
  return answer;
}

bool MayBeCall(std::string_view bytes) {
  const std::string_view begin = bytes.substr(0, sizeof(Call::magic));
  return std::string_view(kMagic).starts_with(begin);
}

std::string OtherVersion(std::string_view bytes) {
  const std::string_view begin = bytes.substr(0, sizeof(Call::magic));
  const bool is_version = begin.size() == sizeof(Call::magic) && begin.starts_with(kMagicOfAll) &&
                          begin != kMagic &&
                          std::all_of(begin.begin() + kMagicOfAll.size(), begin.end(),
                                      [](char digit) { return digit >= '0' && digit <= '9'; });
  return is_version ? std::string(begin) : "";
}

bool IsCall(const Call& call, const Job& job) {
  return Proves(call.proof, job.token, kCall, {Said(call)}) && MayBeCall(BytesOf(call)) &&
         call.to == job.rank;
}

absl::Status CheckChallenge(const Challenge& challenge, const Call& call, const Job& job) {
  const std::string_view bytes = BytesOf(challenge);
  if (const std::string other = OtherVersion(bytes); !other.empty()) {
    return absl::FailedPreconditionError("it speaks version " + other +
                                         " of the protocol and this process " + kMagic +
                                         "; run one version of the library on all ranks");
  }
  if (!MayBeCall(bytes)) {
    return absl::FailedPreconditionError("its answer does not come from a rank of this library");
  }
  if (!Proves(challenge.proof, job.token, kChallenge, {BytesOf(call), Said(challenge)})) {
    return absl::FailedPreconditionError(
        "it does not prove that it knows APOGEE_JOB_TOKEN, so nothing more is sent to it");
  }
  return absl::OkStatus();
}

bool IsHello(const Hello& hello, const Call& call, const Challenge& challenge, const Job& job) {
  return Proves(hello.proof, job.token, kHello, {BytesOf(call), BytesOf(challenge), Said(hello)});
}

absl::Status StatusOf(const Answer& answer) {
  if (std::memcmp(answer.magic, kMagic, sizeof(answer.magic)) != 0) {
    return absl::FailedPreconditionError(
        "its answer does not come from a rank of this library's version");
  }
  return absl::Status(static_cast<absl::StatusCode>(answer.code), TextOf(answer.text));
}

}  // namespace apogee::comm::tcp
