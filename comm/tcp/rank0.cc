// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/rank0.h"

#include "apogee/comm/tcp/reception.h"
#include "apogee/comm/transport/machines.h"

namespace apogee::comm::tcp {
namespace {

// The reasons for which rank 0 refuses a process that has the job's token.
absl::Status CheckGuest(const Job& job, const Reception::Guest& guest,
                        const std::vector<Socket>& peers) {
  if (guest.size != job.size) {
    return InvalidArgument("launch: rank ", guest.rank,
                           " was started with APOGEE_NUM_RANKS=", guest.size, ", rank 0 with ",
                           job.size, "; give all the same number");
  }
  if (guest.rank < 1 || guest.rank >= job.size) {
    return InvalidArgument("launch: a process says that it is rank ", guest.rank, " of ", job.size);
  }
  if (peers[static_cast<size_t>(guest.rank)].is_open()) {
    return InvalidArgument("launch: two processes were started as rank ", guest.rank,
                           "; give each an APOGEE_RANK of its own, 0 to ", job.size - 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<Socket> ListenAsRank0(const Job& job) {
  if (job.listener) {
    auto socket = AdoptListener(*job.listener);
    if (socket.ok()) return socket;
    return InvalidArgument("launch: APOGEE_LISTEN_FD: ", Message(socket.status()),
                           "; leave it to `apogee run`");
  }
  auto socket = Listen(job.host, job.port);
  if (socket.ok()) return socket;
  if (!absl::IsUnavailable(socket.status())) {
    return InvalidArgument("launch: rank 0 cannot listen at APOGEE_ADDRESS=", job.Address(), ": ",
                           Message(socket.status()),
                           "; give the address of a network interface of the machine that rank 0 "
                           "runs on, or start rank 0 on the machine that has this one; 0.0.0.0, "
                           "for rank 0 alone, listens on all interfaces");
  }
  return absl::UnavailableError(internal::Concat(
      "launch: rank 0 cannot listen on port ", job.port, " of APOGEE_ADDRESS=", job.Address(), ": ",
      Message(socket.status()), "; choose a port that is free"));
}

// Hints why some ranks may be missing. They stand between the list of missing ranks and the remedy.
std::string Clues(const Job& job, const Reception& reception) {
  std::string clues;
  const int for_room = reception.num_dropped_for_room();
  if (const int count = reception.num_strangers() - for_room) {
    clues = internal::Concat("; ", count, " connections were dropped because they did not ",
                             "present this job's APOGEE_JOB_TOKEN");
  }
  if (for_room > 0) {
    clues += internal::Concat("; ", for_room, " connections were dropped because this process had ",
                              "no free descriptor: raise the limit of open files (ulimit -n)");
  }
  if (!reception.other_version().empty()) {
    clues += "; a process that speaks version " + reception.other_version() +
             " of the protocol has called, and this one speaks " + kMagic +
             ": run one version of the library on all ranks";
  }
  if (IsLoopback(reception.address()) && !IsLoopback(job.host)) {
    clues += "; here the host '" + job.host + "' has the address " + reception.address() +
             " of the loopback interface, which other machines cannot call: give the address of "
             "a network interface in APOGEE_ADDRESS";
  }
  return clues;
}

// Rank 0 accepts all the others.
absl::Status TakeAll(const Job& job, Reception& reception, Mesh& mesh, std::vector<Place>& places) {
  const auto start = Clock::now();
  for (int missing = job.size - 1; missing > 0; --missing) {
    auto guest = reception.Next(start + job.timeout);
    if (absl::IsDeadlineExceeded(guest.status())) {
      return absl::UnavailableError(internal::Concat(
          "launch: rank ", Missing(mesh, 1), " of ", job.size, " did not connect to rank 0 ", "at ",
          job.Address(), " within ", Seconds(job.timeout), Clues(job, reception),
          "; start all ranks, with the same APOGEE_ADDRESS, or set APOGEE_CONNECT_TIMEOUT to ",
          "more seconds"));
    }
    if (!guest.ok()) {
      return CannotTake(job, guest.status(), Clock::now() - start, Missing(mesh, 1));
    }
    absl::Status status = CheckGuest(job, *guest, mesh.peers);
    const auto address = PeerAddress(guest->socket);
    if (status.ok()) status = address.status();
    if (!status.ok()) {
      WriteAll(guest->socket, BytesOf(MakeAnswer(status)), Clock::now() + kAnswerGrace)
          .IgnoreError();
      return status;
    }
    const auto rank = static_cast<size_t>(guest->rank);
    places[rank].port = guest->port;
    SetText(places[rank].address, *address);
    mesh.machines[rank] = guest->machine;
    SetText(places[rank].machine, mesh.machines[rank]);
    mesh.peers[rank] = std::move(guest->socket);
  }
  return absl::OkStatus();
}

}  // namespace

std::string Seconds(std::chrono::milliseconds time) {
  return internal::Concat(static_cast<double>(time.count()) / 1000, " s");
}

std::string Missing(const Mesh& mesh, size_t first) {
  std::string list;
  for (size_t r = first; r < mesh.peers.size(); ++r) {
    if (!mesh.peers[r].is_open()) list += (list.empty() ? "" : ", ") + std::to_string(r);
  }
  return list;
}

absl::Status CannotTake(const Job& job, const absl::Status& why, Clock::duration waited,
                        const std::string& missing) {
  const bool scarce = absl::IsResourceExhausted(why);
  return absl::UnavailableError(internal::Concat(
      "launch: rank ", job.rank, " cannot take the connection of rank ", missing, " of ", job.size,
      " (", Message(why), ") after ",
      Seconds(std::chrono::duration_cast<std::chrono::milliseconds>(waited)),
      scarce ? "; raise the limit of open files (ulimit -n) of this process, which needs one for "
               "each rank"
             : ""));
}

absl::StatusOr<Mesh> MeetAsRank0(const Job& job) {
  const auto size = static_cast<size_t>(job.size);
  APOGEE_ASSIGN_OR_RETURN(Socket listener, ListenAsRank0(job));
  Reception reception(std::move(listener), job);
  Mesh mesh{.peers = std::vector<Socket>(size), .machines = std::vector<std::string>(size)};
  std::vector<Place> places(size);
  mesh.machines[0] = ThisMachine();
  SetText(places[0].machine, mesh.machines[0]);
  const absl::Status status = TakeAll(job, reception, mesh, places);
  const std::string answer(BytesOf(MakeAnswer(status)));
  const std::string_view table(reinterpret_cast<const char*>(places.data()), size * sizeof(Place));
  for (const Socket& peer : mesh.peers) {
    if (!peer.is_open()) continue;
    // A rank that has gone meanwhile is noticed when it is missing.
    WriteAll(peer, status.ok() ? answer + std::string(table) : answer, Clock::now() + kAnswerGrace)
        .IgnoreError();
  }
  if (!status.ok()) return status;
  return mesh;
}

}  // namespace apogee::comm::tcp
