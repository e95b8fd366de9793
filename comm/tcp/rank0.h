// SPDX-License-Identifier: Apache-2.0

// Rank 0's part of the meeting (meeting.h). It accepts all other ranks, and sends each the
// addresses of all ranks, or an error. Private to comm/tcp.
#ifndef APOGEE_COMM_TCP_RANK0_H_
#define APOGEE_COMM_TCP_RANK0_H_

#include <string>

#include "apogee/comm/tcp/meeting.h"

namespace apogee::comm::tcp {

// Longer than rank 0 takes to notice that its own time is over, and to say so.
inline constexpr std::chrono::seconds kAnswerGrace(5);

absl::StatusOr<Mesh> MeetAsRank0(const Job& job);

// For messages. Seconds: "120 s". Missing: "2, 3", the ranks from `first` on without a connection.
std::string Seconds(std::chrono::milliseconds time);
std::string Missing(const Mesh& mesh, size_t first);
// The error of a rank that cannot accept connections for another reason than time.
absl::Status CannotTake(const Job& job, const absl::Status& why, Clock::duration waited,
                        const std::string& missing);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_RANK0_H_
