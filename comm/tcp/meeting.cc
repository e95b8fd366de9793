#include "apogee/comm/tcp/meeting.h"

#include <algorithm>
#include <thread>

#include "apogee/comm/tcp/rank0.h"
#include "apogee/comm/tcp/reception.h"
#include "apogee/comm/transport/machines.h"

namespace apogee::comm::tcp {
namespace {

constexpr std::chrono::milliseconds kShortestNap(10), kLongestNap(200);

absl::Status Unavailable(const std::string& message) { return absl::UnavailableError(message); }

// Tries until rank 0 is there.
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
          "; is rank 0 started there, and does no firewall stop the port?"));
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
  }
}

// What rank 0 says of where everybody is.
absl::StatusOr<std::vector<Place>> AskRank0(const Job& job, const Socket& socket, uint16_t port) {
  const auto deadline = Clock::now() + job.timeout + kAnswerGrace;
  const std::string there = "rank 0 at APOGEE_ADDRESS=" + job.Address();
  const std::string hello(BytesOf(MakeHello(job, ThisMachine(), port)));
  const absl::Status sent = WriteAll(socket, hello, deadline);
  auto bytes =
      sent.ok() ? ReadExactly(socket, sizeof(Answer), deadline) : absl::StatusOr<std::string>(sent);
  if (bytes.ok()) {
    const absl::Status answer = StatusOf(FromBytes<Answer>(*bytes));
    if (absl::IsFailedPrecondition(answer)) {
      return InvalidArgument("launch: what listens at APOGEE_ADDRESS=", job.Address(),
                             " is no rank 0 of this job: ", Message(answer));
    }
    APOGEE_RETURN_IF_ERROR(answer);
    bytes = ReadExactly(socket, static_cast<size_t>(job.size) * sizeof(Place), deadline);
  }
  if (absl::IsDeadlineExceeded(bytes.status())) {
    return Unavailable(internal::Concat("launch: ", there, " did not answer rank ", job.rank,
                                        " within ", Seconds(job.timeout + kAnswerGrace),
                                        "; has its process come to launch()?"));
  }
  if (!bytes.ok()) {
    return Unavailable(internal::Concat(
        "launch: ", there, " has dropped rank ", job.rank, " (", Message(bytes.status()),
        "): either it has ended, or APOGEE_JOB_TOKEN is not the same for all ranks"));
  }
  std::vector<Place> places(static_cast<size_t>(job.size));
  std::memcpy(places.data(), bytes->data(), bytes->size());
  return places;
}

absl::Status Unreached(const Job& job, int peer, const Place& place, const absl::Status& why) {
  return Unavailable(internal::Concat(
      "launch: rank ", job.rank, " cannot connect to rank ", peer, " at ", TextOf(place.address),
      ", port ", place.port, ": ", Message(why),
      "; has it ended, or does a firewall stop connections between the machines?"));
}

absl::Status TakeHigher(const Job& job, Reception& reception, Mesh& mesh,
                        Clock::time_point deadline) {
  const auto own = static_cast<size_t>(job.rank);
  for (int missing = job.size - 1 - job.rank; missing > 0;) {
    auto guest = reception.Next(deadline);
    if (!guest.ok()) {
      return Unavailable(internal::Concat(
          "launch: rank ", Missing(mesh, own + 1), " did not connect to rank ", job.rank,
          " within ", Seconds(job.timeout),
          "; has it ended, or does a firewall stop connections between the machines?"));
    }
    const int rank = guest->hello.rank;
    const bool expected = guest->hello.size == job.size && rank > job.rank && rank < job.size &&
                          !mesh.peers[static_cast<size_t>(rank)].is_open();
    if (!expected) continue;
    WriteAll(guest->socket, BytesOf(MakeAnswer(absl::OkStatus())), deadline).IgnoreError();
    mesh.peers[static_cast<size_t>(rank)] = std::move(guest->socket);
    --missing;
  }
  return absl::OkStatus();
}

absl::StatusOr<Mesh> MeetAsOther(const Job& job) {
  APOGEE_ASSIGN_OR_RETURN(Socket listener, Listen(job.host, 0));
  APOGEE_ASSIGN_OR_RETURN(const uint16_t port, PortOf(listener));
  Mesh mesh;
  mesh.peers.resize(static_cast<size_t>(job.size));
  APOGEE_ASSIGN_OR_RETURN(mesh.peers[0], CallRank0(job));
  APOGEE_ASSIGN_OR_RETURN(const std::vector<Place> places, AskRank0(job, mesh.peers[0], port));
  for (const Place& place : places) mesh.machines.push_back(TextOf(place.machine));
  // What rank 0 reaches on its own machine is where this process reaches rank 0.
  APOGEE_ASSIGN_OR_RETURN(const std::string rank0, PeerAddress(mesh.peers[0]));
  const auto deadline = Clock::now() + job.timeout;
  const std::string hello(BytesOf(MakeHello(job, ThisMachine(), 0)));
  for (int r = 1; r < job.rank; ++r) {
    const Place& place = places[static_cast<size_t>(r)];
    const std::string address = TextOf(place.address);
    auto socket =
        Connect(IsLoopback(address) ? rank0 : address, static_cast<uint16_t>(place.port), deadline);
    absl::Status status = socket.status();
    if (status.ok()) status = WriteAll(*socket, hello, deadline);
    if (!status.ok()) return Unreached(job, r, place, status);
    mesh.peers[static_cast<size_t>(r)] = *std::move(socket);
  }
  // Nobody waits for an answer before he has called all lower ranks: so no circle of ranks can
  // wait.
  Reception reception(std::move(listener), job.token);
  APOGEE_RETURN_IF_ERROR(TakeHigher(job, reception, mesh, deadline));
  for (int r = 1; r < job.rank; ++r) {
    const auto bytes = ReadExactly(mesh.peers[static_cast<size_t>(r)], sizeof(Answer), deadline);
    const absl::Status status = bytes.ok() ? StatusOf(FromBytes<Answer>(*bytes)) : bytes.status();
    if (!status.ok()) return Unreached(job, r, places[static_cast<size_t>(r)], status);
  }
  return mesh;
}

}  // namespace

absl::StatusOr<Mesh> Meet(const Job& job) {
  return job.rank == 0 ? MeetAsRank0(job) : MeetAsOther(job);
}

}  // namespace apogee::comm::tcp
