#include "apogee/comm/process/process_world.h"

#include <map>
#include <mutex>
#include <utility>

#include "apogee/comm/members.h"
#include "apogee/comm/outcomes.h"
#include "apogee/comm/process/engine.h"
#include "apogee/tensor/make_context.h"

namespace apogee::comm::process {
namespace {

// What the groups of one launch share.
struct Shared {
  Engine* engine;
  uint32_t session;
  Trace* trace;
  std::mutex mutex;
  std::map<std::string, int> num_copies;  // that this process has made, by the group's name
  std::map<Channel, int64_t> next;        // sequence numbers
  std::shared_ptr<FlightRecord> record;
};

// FNV-1a.
uint64_t Hash(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

class ProcessWork : public Work {
 public:
  ProcessWork(std::shared_ptr<Shared> shared, std::shared_ptr<Operation> operation,
              std::chrono::milliseconds timeout)
      : shared_(std::move(shared)), operation_(std::move(operation)), timeout_(timeout) {}

  void Wait() override {
    const FlightRecord::Waiting waiting(*shared_->record);
    Completion& completion = *operation_->completion;
    std::chrono::milliseconds patience = timeout_;
    const auto wait = [&] {
      shared_->engine->Drive(completion, Clock::now() + patience);
      return completion.WaitFor(std::chrono::milliseconds(0));
    };
    while (!wait()) {
      // Either this fails it, or everyone has come and the data is still moving. A thread that
      // does not come out of MPI does neither.
      shared_->engine->TimeOut(operation_, timeout_);
      if (shared_->engine->IsStuck()) {
        completion.Finish("a collective of group " + operation_->group +
                          ": MPI has not returned for " +
                          std::to_string(kSilence.count()).substr(0, 3) + " s");
      }
      patience = std::min(timeout_, std::chrono::milliseconds(50));
    }
  }
  bool IsDone() override { return operation_->completion->IsDone(); }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Operation> operation_;
  std::chrono::milliseconds timeout_;
};

class ProcessGroup : public Group {
 public:
  ProcessGroup(int rank, const std::vector<int>& members, std::string name,
               std::chrono::milliseconds timeout, std::shared_ptr<Shared> shared)
      : Group(rank, members,
              LaneOf(shared->trace, members[static_cast<size_t>(rank)], "communication: " + name)),
        flight_group_(std::make_shared<FlightGroup>(std::move(name), members)),
        hash_(Hash(flight_group_->name)),
        timeout_(timeout),
        shared_(std::move(shared)) {}

  GroupPtr Duplicate(std::chrono::milliseconds timeout) override {
    int number = 0;
    {
      std::lock_guard lock(shared_->mutex);
      number = ++shared_->num_copies[flight_group_->name];
    }
    return std::make_shared<ProcessGroup>(rank(), world_ranks(),
                                          flight_group_->name + " copy " + std::to_string(number),
                                          timeout, shared_);
  }

 protected:
  std::shared_ptr<Work> Submit(CollectiveCall call) override {
    const auto operation = std::make_shared<Operation>();
    operation->session = shared_->session;
    operation->group = flight_group_->name;
    operation->channel.group = hash_;
    operation->group_ranks = world_ranks();
    if (call.kind == CollectiveKind::kSend || call.kind == CollectiveKind::kRecv) {
      const bool send = call.kind == CollectiveKind::kSend;
      operation->channel.sender = send ? rank() : call.root;
      operation->channel.receiver = send ? call.root : rank();
      operation->self = send ? 0 : 1;
      operation->ranks = {world_ranks()[static_cast<size_t>(operation->channel.sender)],
                          world_ranks()[static_cast<size_t>(operation->channel.receiver)]};
    } else {
      operation->self = static_cast<size_t>(rank());
      operation->ranks = world_ranks();
    }
    {
      std::lock_guard lock(shared_->mutex);
      operation->sequence = shared_->next[operation->channel]++;
    }
    const bool pair = operation->channel.sender >= 0;
    operation->record = shared_->record;
    operation->record_id = shared_->record->Call({.group = flight_group_,
                                                  .sender = pair ? operation->ranks[0] : -1,
                                                  .receiver = pair ? operation->ranks[1] : -1,
                                                  .sequence = operation->sequence,
                                                  .fingerprint = Fingerprint(call)});
    operation->call = std::move(call);
    shared_->engine->Call(operation);
    return std::make_shared<ProcessWork>(shared_, operation, timeout_);
  }

 private:
  std::shared_ptr<const FlightGroup> flight_group_;
  uint64_t hash_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace

absl::StatusOr<Processes> ThisProcess() {
  const std::optional<int> started = mpi::ProcessesInEnvironment();
  if (!started || *started == 1) return Processes{};
  APOGEE_ASSIGN_OR_RETURN(Engine * engine, Engine::OfProcess());
  return Processes{.rank = engine->rank(), .size = engine->size()};
}

int64_t BytesToOtherMachines() {
  return ValueOrThrow(Engine::OfProcess())->bytes_to_other_machines();
}

absl::Status Launch(const LaunchOptions& options, int num_threads,
                    const std::function<void(World&)>& fn) {
  APOGEE_ASSIGN_OR_RETURN(const DeviceName device, ParseDevice(options.device));
  APOGEE_ASSIGN_OR_RETURN(Engine * engine, Engine::OfProcess());
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000));
  const auto shared = std::make_shared<Shared>();
  shared->engine = engine;
  shared->trace = options.trace;
  const int rank = engine->rank(), size = options.num_ranks;
  shared->record = std::make_shared<FlightRecord>(rank, size, timeout,
                                                  rank < size ? options.flight_record_dir : "");
  shared->session = engine->Begin(shared->record, timeout);
  RankEnding own;
  if (rank < size) {
    try {
      OkOrThrow(shared->record->Prepare());
      World world(
          rank, size, ValueOrThrow(MakeContext(device.For(rank), num_threads)),
          [&](const std::vector<int>& members) -> GroupPtr {
            const int place = PlaceAmong(members, rank, size);
            return std::make_shared<ProcessGroup>(place, members, FormatRanks(members), timeout,
                                                  shared);
          },
          options.trace);
      fn(world);
    } catch (const CommError& error) {
      own = {.ending = Ending::kEcho, .text = error.what()};
    } catch (const std::exception& error) {
      own = {.ending = Ending::kThrew, .text = error.what()};
    } catch (...) {
      own = {.ending = Ending::kThrew, .text = "threw something that is not a std::exception"};
    }
  }
  Outcomes outcomes;
  shared->record->EndFunction(own.ending == Ending::kReturned ? "returned" : "failed: " + own.text);
  const std::vector<RankEnding> endings = engine->End(shared->session, own);
  for (size_t r = 0; r < endings.size(); ++r) {
    if (endings[r].ending == Ending::kReturned) continue;
    outcomes.Fail(static_cast<int>(r), endings[r].text, endings[r].ending == Ending::kEcho);
  }
  const absl::Status status = outcomes.ToStatus(size);
  if (!status.ok()) shared->record->WriteWithin(std::chrono::seconds(2));
  return status;
}

}  // namespace apogee::comm::process
