// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/job.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace apogee::comm::tcp {
namespace {

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

absl::StatusOr<int> Number(const char* name, const std::string& text, int least, int most,
                           const std::string& meaning) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < least || number > most) {
    return InvalidArgument("launch: the environment variable ", name, " is '", text,
                           "'; it must be ", meaning, ", ", least, " to ", most);
  }
  return number;
}

// Accepts "node1:29400", "127.0.0.1:29400" and "[::1]:29400".
absl::Status ParseAddress(const std::string& text, Job& job) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (colon == std::string::npos || host.empty() ||
      (!bracketed && host.find(':') != std::string::npos)) {
    return InvalidArgument("launch: the environment variable APOGEE_ADDRESS is '", text,
                           "'; it must be where rank 0 listens, host:port, such as node1:29400 or "
                           "[::1]:29400");
  }
  job.host = host;
  APOGEE_ASSIGN_OR_RETURN(const int port, Number("APOGEE_ADDRESS", text.substr(colon + 1), 1, 65535,
                                                 "host:port, with a port that is a number"));
  job.port = static_cast<uint16_t>(port);
  return absl::OkStatus();
}

}  // namespace

std::string Job::Address() const {
  const bool is_number_of_v6 = host.find(':') != std::string::npos;
  return (is_number_of_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

const std::vector<std::string>& JobVariables() {
  static const std::vector<std::string>& kNames = *new std::vector<std::string>{
      "APOGEE_RANK", "APOGEE_NUM_RANKS", "APOGEE_ADDRESS", "APOGEE_JOB_TOKEN", "APOGEE_LISTEN_FD"};
  return kNames;
}

absl::StatusOr<std::optional<Job>> JobInEnvironment() {
  constexpr std::array<const char*, 3> kNeeded = {"APOGEE_RANK", "APOGEE_NUM_RANKS",
                                                  "APOGEE_ADDRESS"};
  std::array<std::optional<std::string>, 3> values;
  std::string present, absent;
  for (size_t i = 0; i < kNeeded.size(); ++i) {
    values[i] = Variable(kNeeded[i]);
    std::string& list = values[i] ? present : absent;
    list += (list.empty() ? "" : ", ") + std::string(kNeeded[i]);
  }
  if (present.empty()) return std::nullopt;
  if (!absent.empty()) {
    return InvalidArgument("launch: of the environment variables that make this process a rank, ",
                           present, " is set and ", absent,
                           " is not; set all three, or none, or start the program with `apogee "
                           "run -n N`, which sets them");
  }
  Job job;
  APOGEE_ASSIGN_OR_RETURN(
      job.size, Number("APOGEE_NUM_RANKS", *values[1], 1, Job::kMaxRanks, "the number of ranks"));
  APOGEE_ASSIGN_OR_RETURN(job.rank, Number("APOGEE_RANK", *values[0], 0, job.size - 1,
                                           "this process' rank, below APOGEE_NUM_RANKS"));
  APOGEE_RETURN_IF_ERROR(ParseAddress(*values[2], job));
  job.token = Variable("APOGEE_JOB_TOKEN").value_or("");
  if (job.token.size() > Job::kMaxTokenBytes) {
    return InvalidArgument("launch: APOGEE_JOB_TOKEN has ", job.token.size(),
                           " bytes; it must have at most ", Job::kMaxTokenBytes);
  }
  if (const auto text = Variable("APOGEE_LISTEN_FD")) {
    APOGEE_ASSIGN_OR_RETURN(job.listener, Number("APOGEE_LISTEN_FD", *text, 0, 1 << 20,
                                                 "the number of a socket that listens"));
  }
  if (const auto text = Variable("APOGEE_CONNECT_TIMEOUT")) {
    APOGEE_ASSIGN_OR_RETURN(const int seconds,
                            Number("APOGEE_CONNECT_TIMEOUT", *text, 1, 86400,
                                   "how many seconds the ranks wait for each other"));
    job.timeout = std::chrono::seconds(seconds);
  }
  return job;
}

}  // namespace apogee::comm::tcp
