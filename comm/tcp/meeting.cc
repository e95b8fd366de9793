// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/meeting.h"

#include <algorithm>
#include <thread>

#include "apogee/comm/tcp/introduction.h"
#include "apogee/comm/tcp/rank0.h"
#include "apogee/comm/tcp/reception.h"
#include "apogee/comm/transport/machines.h"

namespace apogee::comm::tcp {
namespace {

constexpr std::chrono::milliseconds kShortestNap(10), kLongestNap(200);

absl::Status Unavailable(const std::string& message) { return absl::UnavailableError(message); }

// Tries until rank 0 listens.
absl::StatusOr<Socket> CallRank0(const Job& job) {
  const auto deadline = Clock::now() + job.timeout;
  auto nap = kShortestNap;
  while (true) {
    auto socket = Connect(job.host, job.port, deadline);
    if (socket.ok()) return socket;
    if (absl::IsNotFound(socket.status())) {
      return InvalidArgument("launch: APOGEE_ADDRESS is ", job.Address(), ": ",
                             Message(socket.status()));
    }
    if (Clock::now() + nap >= deadline) {
      return Unavailable(internal::Concat(
          "launch: rank ", job.rank, " cannot connect to rank 0 at APOGEE_ADDRESS=", job.Address(),
          " within ", Seconds(job.timeout), ": ", Message(socket.status()),
          IsWildcard(job.host) ? "; this address is for rank 0 only; give the others the address "
                                 "of its machine"
                               : "; is rank 0 started there, and does no firewall stop the port?"));
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
  }
}

// Receives from rank 0 where every rank listens.
absl::StatusOr<std::vector<Place>> AskRank0(const Job& job, const Socket& socket, uint16_t port) {
  const auto deadline = Clock::now() + job.timeout + kAnswerGrace;
  const std::string there = "rank 0 at APOGEE_ADDRESS=" + job.Address();
  const auto is_none = [&](const absl::Status& why) {
    return InvalidArgument("launch: the process that listens at APOGEE_ADDRESS=", job.Address(),
                           " is not rank 0 of this job: ", Message(why));
  };
  const absl::Status said = Introduce(socket, job, /*to=*/0, port, deadline);
  if (absl::IsFailedPrecondition(said)) return is_none(said);
  auto bytes =
      said.ok() ? ReadExactly(socket, sizeof(Answer), deadline) : absl::StatusOr<std::string>(said);
  if (bytes.ok()) {
    const absl::Status answer = StatusOf(FromBytes<Answer>(*bytes));
    if (absl::IsFailedPrecondition(answer)) return is_none(answer);
    APOGEE_RETURN_IF_ERROR(answer);
    bytes = ReadExactly(socket, static_cast<size_t>(job.size) * sizeof(Place), deadline);
  }
  if (absl::IsDeadlineExceeded(bytes.status())) {
    return Unavailable(internal::Concat("launch: ", there, " did not answer rank ", job.rank,
                                        " within ", Seconds(job.timeout + kAnswerGrace),
                                        "; has its process called launch()?"));
  }
  if (!bytes.ok()) {
    return Unavailable(internal::Concat(
        "launch: ", there, " has dropped rank ", job.rank, " (", Message(bytes.status()),
        "): either it has ended, or APOGEE_JOB_TOKEN is not the same for all ranks, or the ranks ",
        "run different versions of the library"));
  }
  std::vector<Place> places(static_cast<size_t>(job.size));
  std::memcpy(places.data(), bytes->data(), bytes->size());
  return places;
}

absl::Status Unreached(const Job& job, int peer, const Place& place, const absl::Status& why) {
  const std::string address = TextOf(place.address);
  const bool is_elsewhere = TextOf(place.machine) != ThisMachine();
  std::string remedy = "has it ended, or does a firewall stop connections between the machines?";
  if (absl::IsFailedPrecondition(why)) {
    remedy = "another program listens there";
  } else if (IsLoopback(address) && is_elsewhere) {
    remedy = internal::Concat("rank ", peer, " has called rank 0 over the loopback interface of ",
                              "their machine: give it an APOGEE_ADDRESS of a network");
  }
  return Unavailable(internal::Concat("launch: rank ", job.rank, " cannot connect to rank ", peer,
                                      " at ", address, ", port ", place.port, ": ", Message(why),
                                      "; ", remedy));
}

// Returns when rank `peer` has accepted this process.
absl::StatusOr<Socket> CallLower(const Job& job, int peer, const Place& place,
                                 Clock::time_point deadline) {
  APOGEE_ASSIGN_OR_RETURN(
      Socket socket, Connect(TextOf(place.address), static_cast<uint16_t>(place.port), deadline));
  APOGEE_RETURN_IF_ERROR(Introduce(socket, job, peer, /*port=*/0, deadline));
  APOGEE_ASSIGN_OR_RETURN(const std::string bytes, ReadExactly(socket, sizeof(Answer), deadline));
  APOGEE_RETURN_IF_ERROR(StatusOf(FromBytes<Answer>(bytes)));
  return socket;
}

absl::Status TakeHigher(const Job& job, Reception& reception, Mesh& mesh,
                        Clock::time_point deadline) {
  const auto own = static_cast<size_t>(job.rank);
  const auto start = Clock::now();
  for (int missing = job.size - 1 - job.rank; missing > 0;) {
    auto guest = reception.Next(deadline);
    if (absl::IsDeadlineExceeded(guest.status())) {
      return Unavailable(internal::Concat(
          "launch: rank ", Missing(mesh, own + 1), " did not connect to rank ", job.rank,
          " within ", Seconds(job.timeout),
          "; has it ended, or does a firewall stop connections between the machines?"));
    }
    if (!guest.ok()) {
      return CannotTake(job, guest.status(), Clock::now() - start, Missing(mesh, own + 1));
    }
    const int rank = guest->rank;
    const bool expected = guest->size == job.size && rank > job.rank && rank < job.size &&
                          !mesh.peers[static_cast<size_t>(rank)].is_open();
    if (!expected) continue;
    WriteAll(guest->socket, BytesOf(MakeAnswer(absl::OkStatus())), deadline).IgnoreError();
    mesh.peers[static_cast<size_t>(rank)] = std::move(guest->socket);
    --missing;
  }
  return absl::OkStatus();
}

absl::StatusOr<Mesh> MeetAsOther(const Job& job) {
  Mesh mesh;
  mesh.peers.resize(static_cast<size_t>(job.size));
  APOGEE_ASSIGN_OR_RETURN(mesh.peers[0], CallRank0(job));
  APOGEE_ASSIGN_OR_RETURN(Socket listener, ListenBeside(mesh.peers[0]));
  APOGEE_ASSIGN_OR_RETURN(const uint16_t port, PortOf(listener));
  APOGEE_ASSIGN_OR_RETURN(const std::vector<Place> places, AskRank0(job, mesh.peers[0], port));
  for (const Place& place : places) mesh.machines.push_back(TextOf(place.machine));
  const auto deadline = Clock::now() + job.timeout;
  // A rank accepts others only after all lower ranks have accepted it. So ranks wait only for
  // lower ranks, and never in a circle.
  for (int r = 1; r < job.rank; ++r) {
    const Place& place = places[static_cast<size_t>(r)];
    auto socket = CallLower(job, r, place, deadline);
    if (!socket.ok()) return Unreached(job, r, place, socket.status());
    mesh.peers[static_cast<size_t>(r)] = *std::move(socket);
  }
  Reception reception(std::move(listener), job);
  APOGEE_RETURN_IF_ERROR(TakeHigher(job, reception, mesh, deadline));
  return mesh;
}

}  // namespace

absl::StatusOr<Mesh> Meet(const Job& job) {
  return job.rank == 0 ? MeetAsRank0(job) : MeetAsOther(job);
}

}  // namespace apogee::comm::tcp
