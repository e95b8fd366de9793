// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/hang_report/hang_report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

namespace apogee::tools {
namespace {

// Identifies a call: the ranks that number their calls together, and the number.
struct CallKey {
  std::string group;
  int sender = -1, receiver = -1;
  int64_t sequence = 0;
  friend auto operator<=>(const CallKey&, const CallKey&) = default;
};

CallKey KeyOf(const FlightFile& file, const FlightFileCall& call) {
  const FlightChannel& channel = file.channels[call.channel];
  return {channel.group, channel.sender, channel.receiver, call.sequence};
}

// The ranks that must make the call.
std::vector<int> MembersOf(const FlightFile& file, const FlightFileCall& call) {
  const FlightChannel& channel = file.channels[call.channel];
  if (channel.sender < 0) return channel.ranks;
  return {channel.sender, channel.receiver};
}

std::string Describe(const FlightFile& file, const FlightFileCall& call) {
  return call.call + " #" + std::to_string(call.sequence) + " of group " +
         file.channels[call.channel].group;
}

// "rank 1", "ranks 0, 2".
std::string Ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? " " : ", ");
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string Seconds(double ms) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", ms / 1000);
  return text;
}

// The first call of a rank that is not done; nullptr if all are.
const FlightFileCall* OpenCall(const FlightFile& file) {
  const auto open = std::ranges::find_if(
      file.calls, [](const FlightFileCall& call) { return call.state != "done"; });
  return open == file.calls.end() ? nullptr : &*open;
}

const FlightFileCall* FindCall(const FlightFile& file, const CallKey& key) {
  for (const FlightFileCall& call : file.calls) {
    if (KeyOf(file, call) == key) return &call;
  }
  return nullptr;
}

// True if the rank of the record has made the call, even if the record no longer contains it.
bool HasCalled(const FlightFile& file, const CallKey& key) {
  return std::ranges::any_of(file.channels, [&](const FlightChannel& channel) {
    return channel.group == key.group && channel.sender == key.sender &&
           channel.receiver == key.receiver && channel.num_calls > key.sequence;
  });
}

// The part of a call that members must agree on: for send and recv the tensor, after "to 1, ".
std::string Agreement(const CallKey& key, const std::string& call) {
  if (key.sender < 0) return call;
  const size_t comma = call.find(", ");
  return comma == std::string::npos ? call : call.substr(comma);
}

class Analysis {
 public:
  explicit Analysis(const FlightFiles& files) : files_(files) {
    for (const auto& [rank, file] : files.ranks) {
      if (const FlightFileCall* const call = OpenCall(file)) open_[rank] = call;
    }
  }

  HangReport Report() {
    HangReport report;
    if (!FindDisagreement(report) && !FindMissing(report) && !FindStalled(report)) {
      FindFailure(report);
    }
    for (int rank = 0; rank < files_.num_ranks; ++rank) {
      const auto found = files_.ranks.find(rank);
      report.by_rank.push_back("rank " + std::to_string(rank) + ": " +
                               (found == files_.ranks.end() ? std::string("no record")
                                                            : "function " + found->second.function +
                                                                  "; " + LastCall(found->second)));
    }
    return report;
  }

 private:
  static std::string LastCall(const FlightFile& file) {
    const FlightFileCall* call = OpenCall(file);
    if (call == nullptr && !file.calls.empty()) call = &file.calls.back();
    if (call == nullptr) return "it has called no collective";
    const std::string took = Seconds(call->ended_ms - call->called_ms);
    if (call->state == "done") {
      return "its last call was " + Describe(file, *call) + ", done " +
             Seconds(file.age_ms - call->ended_ms) + " before";
    }
    return (call->state == "failed" ? "failed after " + took + " in " : "since " + took + " in ") +
           Describe(file, *call);
  }

  bool FindDisagreement(HangReport& report) {
    for (const auto& [rank, call] : open_) {
      const FlightFile& file = files_.ranks.at(rank);
      const CallKey key = KeyOf(file, *call);
      std::map<std::string, std::vector<int>> by_call;
      std::map<std::string, std::string> names;
      for (const int member : MembersOf(file, *call)) {
        const auto other = files_.ranks.find(member);
        if (other == files_.ranks.end()) continue;
        const FlightFileCall* const theirs = FindCall(other->second, key);
        if (theirs == nullptr) continue;
        const std::string agreed = Agreement(key, theirs->call);
        by_call[agreed].push_back(member);
        names[agreed] = theirs->call;
      }
      if (by_call.size() < 2) continue;
      std::vector<std::pair<std::string, std::vector<int>>> sides(by_call.begin(), by_call.end());
      std::ranges::stable_sort(
          sides, [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
      std::string text = "ranks disagree on call #" + std::to_string(key.sequence) + " of group " +
                         key.group + ": ";
      for (size_t i = 0; i < sides.size(); ++i) {
        text += (i == 0                  ? ""
                 : i + 1 == sides.size() ? ", where "
                                         : ", ") +
                Ranks(sides[i].second) + " called " + names[sides[i].first];
        // Only the smaller sides are to blame; if all sides are equal, all are.
        if (sides[i].second.size() < sides.back().second.size() ||
            sides[0].second.size() == sides.back().second.size()) {
          report.culprits.insert(report.culprits.end(), sides[i].second.begin(),
                                 sides[i].second.end());
        }
      }
      report.sentence = text + "; all members must call the same collectives in the same order";
      return true;
    }
    return false;
  }

  // The members of the open call that have not made it.
  std::vector<int> MissingFrom(const FlightFile& file, const FlightFileCall& call) const {
    std::vector<int> missing;
    for (const int member : MembersOf(file, call)) {
      const auto other = files_.ranks.find(member);
      // A member without a record is judged by the other member's view of the call.
      const bool came = other == files_.ranks.end() ? Came(call, member)
                                                    : HasCalled(other->second, KeyOf(file, call));
      if (!came) missing.push_back(member);
    }
    return missing;
  }
  static bool Came(const FlightFileCall& call, int member) {
    if (call.state != "failed") return call.state == "moving";
    return std::ranges::find(call.missing, member) == call.missing.end();
  }

  bool FindMissing(HangReport& report) {
    std::map<int, std::vector<int>> waits_for;
    std::set<int> awaited;
    for (const auto& [rank, call] : open_) {
      waits_for[rank] = MissingFrom(files_.ranks.at(rank), *call);
      awaited.insert(waits_for[rank].begin(), waits_for[rank].end());
    }
    for (const int rank : awaited) {
      const auto waits = waits_for.find(rank);
      if (waits == waits_for.end() || waits->second.empty()) report.culprits.push_back(rank);
    }
    if (awaited.empty()) return false;
    if (report.culprits.empty()) return FindCycle(waits_for, report);
    const int culprit = report.culprits[0];
    std::vector<int> waiting;
    const FlightFile* file = nullptr;
    const FlightFileCall* call = nullptr;
    for (const auto& [rank, missing] : waits_for) {
      if (std::ranges::find(missing, culprit) == missing.end()) continue;
      const FlightFile& theirs = files_.ranks.at(rank);
      if (call != nullptr && KeyOf(theirs, *open_.at(rank)) != KeyOf(*file, *call)) continue;
      if (call == nullptr) file = &theirs, call = open_.at(rank);
      waiting.push_back(rank);
    }
    report.sentence = Ranks(report.culprits) + " did not call " + Describe(*file, *call) +
                      ", for which " + Ranks(waiting) + " waited " +
                      Seconds(call->ended_ms - call->called_ms);
    for (const int rank : report.culprits) {
      const std::string who = report.culprits.size() == 1 ? "it" : "rank " + std::to_string(rank);
      const auto record = files_.ranks.find(rank);
      if (record == files_.ranks.end()) {
        report.sentence +=
            "; " + who + " has left no record: its process was killed, stopped or cut off";
      } else if (record->second.function == "running") {
        report.sentence += "; " + who + " was still in its function; " + LastCall(record->second);
      } else {
        report.sentence += "; its function had " + record->second.function;
      }
    }
    return true;
  }

  // For the case that every rank waits for another: finds a cycle of such ranks.
  bool FindCycle(const std::map<int, std::vector<int>>& waits_for, HangReport& report) const {
    std::vector<int> path = {waits_for.begin()->first};
    while (waits_for.at(path.back()).empty()) {
      const auto next = waits_for.find(path.back());
      path = {std::next(next)->first};
    }
    while (true) {
      const int next = waits_for.at(path.back()).front();
      const auto seen = std::ranges::find(path, next);
      if (seen != path.end()) {
        path.erase(path.begin(), seen);
        break;
      }
      path.push_back(next);
    }
    report.culprits = path;
    report.sentence = "a circle of waits: ";
    for (size_t i = 0; i < path.size(); ++i) {
      const FlightFile& file = files_.ranks.at(path[i]);
      report.sentence += (i == 0 ? "" : ", ") + Ranks({path[i]}) + " is in " +
                         Describe(file, *open_.at(path[i])) + " and waits for rank " +
                         std::to_string(path[(i + 1) % path.size()]);
    }
    report.sentence += "; all members must call the same collectives in the same order";
    return true;
  }

  bool FindStalled(HangReport& report) {
    for (const auto& [rank, call] : open_) {
      const FlightFile& file = files_.ranks.at(rank);
      for (const int member : MembersOf(file, *call)) {
        if (!files_.ranks.contains(member)) report.culprits.push_back(member);
      }
      report.sentence =
          "all members have called " + Describe(file, *call) + ", but its data has stopped moving";
      if (!report.culprits.empty()) {
        report.sentence +=
            "; " + Ranks(report.culprits) + " left no record: killed, stopped or cut off meanwhile";
      } else if (!call->error.empty()) {
        report.sentence += ": " + call->error;
      }
      return true;
    }
    return false;
  }

  void FindFailure(HangReport& report) {
    for (const auto& [rank, file] : files_.ranks) {
      if (!file.function.starts_with("failed")) continue;
      report.culprits = {rank};
      report.sentence =
          Ranks({rank}) + "'s function has " + file.function + "; no collective waited for anybody";
      return;
    }
    for (int rank = 0; rank < files_.num_ranks; ++rank) {
      if (!files_.ranks.contains(rank)) report.culprits.push_back(rank);
    }
    report.sentence = report.culprits.empty()
                          ? "no collective waited for anybody, and no function failed"
                          : Ranks(report.culprits) +
                                " left no record; on the others no collective waited for anybody";
  }

  const FlightFiles& files_;
  std::map<int, const FlightFileCall*> open_;
};

}  // namespace

HangReport FindCulprit(const FlightFiles& files) { return Analysis(files).Report(); }

}  // namespace apogee::tools
