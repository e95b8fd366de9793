// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/introduction.h"

#include "apogee/comm/tcp/hello.h"
#include "apogee/comm/transport/machines.h"

namespace apogee::comm::tcp {

absl::Status Introduce(const Socket& socket, const Job& job, int to, uint16_t port,
                       Clock::time_point deadline) {
  const Call call = MakeCall(job, to);
  APOGEE_RETURN_IF_ERROR(WriteAll(socket, BytesOf(call), deadline));
  APOGEE_ASSIGN_OR_RETURN(const std::string bytes,
                          ReadExactly(socket, sizeof(Challenge), deadline));
  const auto challenge = FromBytes<Challenge>(bytes);
  APOGEE_RETURN_IF_ERROR(CheckChallenge(challenge, call, job));
  const Hello hello = MakeHello(job, call, challenge, ThisMachine(), port);
  return WriteAll(socket, BytesOf(hello), deadline);
}

}  // namespace apogee::comm::tcp
