// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/process/process_world.h"

#include <memory>
#include <numeric>

#include "apogee/comm/backend.h"
#include "apogee/comm/failure/outcomes.h"
#include "apogee/comm/members.h"
#include "apogee/comm/process/gpus.h"
#include "apogee/comm/process/process_group.h"
#include "apogee/comm/process/starter.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/make_context.h"

namespace apogee::comm::process {
namespace {

// Lets NCCL move GPU tensors if every rank can use it. Collective; the same result on all ranks.
absl::Status UseGpus(const std::shared_ptr<Shared>& shared, Device device, int size,
                     std::chrono::milliseconds timeout) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  ProcessGroup group(shared->engine->rank(), ranks, FormatRanks(ranks) + " before the launch",
                     timeout, shared);
  const auto api = nccl::NcclApi::Load();
  APOGEE_RETURN_IF_ERROR(CompareGpus(ShareGpus(group, DescribeGpu(api, device))));
  const auto tell = [engine = shared->engine, session = shared->session](
                        const Channel& channel, const std::vector<int>& members,
                        const std::string& why) {
    engine->FailOnDevice(session, channel, members, why);
  };
  shared->gpu = std::make_shared<GpuChannels>(*api, device, shared->record, tell);
  shared->engine->SetOnDeviceFailure(
      shared->session, [gpu = std::weak_ptr(shared->gpu)](uint64_t hash, const std::string& why) {
        if (const auto channels = gpu.lock()) channels->Fail(hash, why);
      });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Processes> ThisProcess() {
  APOGEE_ASSIGN_OR_RETURN(const Started started, StartedInEnvironment());
  if (started.size == 1) return Processes{};
  APOGEE_ASSIGN_OR_RETURN(CollectiveEngine * engine, CollectiveEngine::OfProcess());
  return Processes{.rank = engine->rank(), .size = engine->size()};
}

int64_t BytesToOtherMachines() {
  return ValueOrThrow(CollectiveEngine::OfProcess())->bytes_to_other_machines();
}

absl::Status Launch(const LaunchOptions& options, int num_threads,
                    const std::function<void(World&)>& fn) {
  APOGEE_ASSIGN_OR_RETURN(const DeviceName device, ParseDevice(options.device));
  APOGEE_ASSIGN_OR_RETURN(CollectiveEngine * engine, CollectiveEngine::OfProcess());
  APOGEE_ASSIGN_OR_RETURN(const Backend backend, ChooseBackend(options, engine->size()));
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000));
  const auto shared = std::make_shared<Shared>();
  shared->engine = engine;
  shared->trace = options.trace;
  const int rank = engine->rank(), size = options.num_ranks;
  shared->record = std::make_shared<FlightRecord>(rank, size, timeout,
                                                  rank < size ? options.flight_record_dir : "");
  shared->session = engine->Begin(shared->record, timeout);
  Reserve reserve;
  std::exception_ptr thrown;
  absl::Status refused;
  if (rank < size) {
    try {
      OkOrThrow(shared->record->Prepare());
      const ContextPtr context = ValueOrThrow(MakeContext(device.For(rank), num_threads));
      OkOrThrow(StartTeam(num_threads));
      if (backend == Backend::kNccl && size > 1) {
        refused = UseGpus(shared, context->device(), size, timeout);
        OkOrThrow(refused);
      }
      World world(
          rank, size, context,
          [&](const std::vector<int>& members) -> GroupPtr {
            const int place = PlaceAmong(members, rank, size);
            return std::make_shared<ProcessGroup>(place, members, FormatRanks(members), timeout,
                                                  shared);
          },
          options.trace);
      fn(world);
      // Calls that the function did not wait for may have failed.
      if (shared->gpu != nullptr) shared->gpu->Drain();
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  reserve.Release();
  RankEnding own;
  if (thrown) {
    RankFailure failure = FailureOf(thrown);
    own = {.ending = failure.echo ? Ending::kEcho : Ending::kThrew,
           .text = std::move(failure.message)};
  }
  Outcomes outcomes;
  shared->record->EndFunction(own.ending == Ending::kReturned ? "returned" : "failed: " + own.text);
  const std::vector<RankEnding> endings = engine->End(shared->session, own);
  for (size_t r = 0; r < endings.size(); ++r) {
    if (endings[r].ending == Ending::kReturned) continue;
    outcomes.Fail(static_cast<int>(r),
                  {.message = endings[r].text, .echo = endings[r].ending == Ending::kEcho});
  }
  const absl::Status status = refused.ok() ? outcomes.ToStatus(size) : refused;
  if (shared->gpu != nullptr) {
    shared->gpu->End(status.ok() ? "" : "the launch has failed: " + apogee::Message(status));
  }
  if (!status.ok()) shared->record->WriteWithin(std::chrono::seconds(2));
  return status;
}

}  // namespace apogee::comm::process
