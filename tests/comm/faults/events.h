// SPDX-License-Identifier: Apache-2.0

// The reports of the ranks of a fault trial: lines of one file. Each is appended by one write, so
// lines of several processes do not mix, and none is lost when a process dies.
//
//   Events events(folder + "/events");
//   events.Add("fault", world.rank(), "2 calls under way");
#ifndef APOGEE_TESTS_COMM_FAULTS_EVENTS_H_
#define APOGEE_TESTS_COMM_FAULTS_EVENTS_H_

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>
#include <vector>

#include "apogee/core/error.h"

namespace apogee::comm::faults {

// Seconds on a clock that all processes of the machine share.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Event {
  std::string kind;  // "process", "shared", "fault", "threw", "launch"
  int rank = 0;
  double seconds = 0;
  std::string text;
};

class Events {
 public:
  explicit Events(const std::string& path)
      : file_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
    APOGEE_CHECK(file_ >= 0, "cannot write ", path);
  }
  ~Events() { close(file_); }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  void Add(const std::string& kind, int rank, std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::ostringstream line;
    line.precision(17);
    line << kind << ' ' << rank << ' ' << Now() << ' ' << text << '\n';
    const std::string bytes = line.str();
    APOGEE_CHECK(write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
                 "cannot report ", kind);
  }

 private:
  int file_;
};

// The whole lines of such a file.
inline std::vector<Event> ParseEvents(const std::string& text) {
  std::vector<Event> events;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    std::istringstream line(text.substr(at, end - at));
    Event event;
    line >> event.kind >> event.rank >> event.seconds;
    line.get();
    std::getline(line, event.text);
    events.push_back(std::move(event));
  }
  return events;
}

}  // namespace apogee::comm::faults

#endif  // APOGEE_TESTS_COMM_FAULTS_EVENTS_H_
