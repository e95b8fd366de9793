// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/hang_report/flight_files.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "apogee/checkpoint/format/open_tensor_file.h"

namespace apogee::tools {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{8} << 20;
constexpr int kMaxDepth = 8;
constexpr int64_t kMaxRanks = 1'000'000;

// Reads one object of the file; keeps the first problem.
class Fields {
 public:
  Fields(const Json& object, std::string where, std::string& problem)
      : object_(object), where_(std::move(where)), problem_(problem) {
    if (!object.is_object()) Fail((where_.empty() ? "the record" : where_) + " must be an object");
  }
  std::string Text(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) return Fail(Name(key) + " must be a text"), "";
    return value->get<std::string>();
  }
  int64_t Whole(const char* key, int64_t min, int64_t max) {
    const Json* value = Find(key);
    if (value == nullptr) return min;
    const bool whole =
        value->is_number_integer() &&
        !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
    if (!whole || value->get<int64_t>() < min || value->get<int64_t>() > max) {
      Fail(Name(key) + " must be a whole number from " + std::to_string(min) + " to " +
           std::to_string(max));
      return min;
    }
    return value->get<int64_t>();
  }
  double Ms(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return 0;
    if (!value->is_number() || !(value->get<double>() >= 0)) {
      return Fail(Name(key) + " must be a time in ms"), 0;
    }
    return value->get<double>();
  }
  const Json& List(const char* key) {
    static const Json kNone = Json::array();
    const Json* value = Find(key);
    if (value == nullptr) return kNone;
    if (!value->is_array()) return Fail(Name(key) + " must be a list"), kNone;
    return *value;
  }
  std::vector<int> Ranks(const char* key) {
    std::vector<int> ranks;
    for (const Json& rank : List(key)) {
      if (!rank.is_number_integer() || rank < 0 || rank >= kMaxRanks) {
        return Fail(Name(key) + " must be a list of ranks"), ranks;
      }
      ranks.push_back(rank.get<int>());
    }
    return ranks;
  }
  bool Has(const char* key) const { return object_.is_object() && object_.contains(key); }
  void Fail(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }
  std::string Name(const char* key) const {
    return where_ + (where_.empty() ? "\"" : ": \"") + key + "\"";
  }

 private:
  const Json* Find(const char* key) {
    if (!Has(key)) return Fail(Name(key) + " is missing"), nullptr;
    return &object_[key];
  }

  const Json& object_;
  std::string where_;
  std::string& problem_;
};

std::string At(const char* list, size_t i) { return std::string(list) + " " + std::to_string(i); }

FlightChannel ParseChannel(const Json& json, size_t i, std::string& problem) {
  Fields fields(json, At("channel", i), problem);
  FlightChannel channel{.group = fields.Text("group")};
  channel.ranks = fields.Ranks("ranks");
  channel.sender = static_cast<int>(fields.Whole("sender", -1, kMaxRanks));
  channel.receiver = static_cast<int>(fields.Whole("receiver", -1, kMaxRanks));
  channel.num_calls = fields.Whole("num_calls", 0, INT64_MAX);
  return channel;
}

FlightFileCall ParseCall(const Json& json, size_t i, const FlightFile& file, std::string& problem) {
  Fields fields(json, At("call", i), problem);
  FlightFileCall call;
  call.channel = static_cast<size_t>(
      fields.Whole("channel", 0, static_cast<int64_t>(file.channels.size()) - 1));
  call.sequence = fields.Whole("sequence", 0, INT64_MAX);
  call.call = fields.Text("call");
  call.state = fields.Text("state");
  if (call.state != "waiting" && call.state != "moving" && call.state != "done" &&
      call.state != "failed") {
    fields.Fail(fields.Name("state") + " must be waiting, moving, done or failed");
  }
  call.called_ms = fields.Ms("called_ms");
  call.ended_ms = fields.Has("ended_ms") ? fields.Ms("ended_ms") : file.age_ms;
  if (fields.Has("error")) call.error = fields.Text("error");
  if (fields.Has("missing")) call.missing = fields.Ranks("missing");
  return call;
}

// "rank12.json": 12.
std::optional<int> RankOfFile(const std::string& name) {
  constexpr std::string_view kBegin = "rank", kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  int rank = -1;
  const char* const end = name.data() + name.size() - kEnd.size();
  const auto [stop, error] = std::from_chars(name.data() + kBegin.size(), end, rank);
  if (error != std::errc() || stop != end || rank < 0) return std::nullopt;
  return rank;
}

}  // namespace

absl::StatusOr<FlightFile> ParseFlightFile(const std::string& text, const std::string& path) {
  bool deep = false;
  const Json root = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, Json&) {
        deep = deep || depth > kMaxDepth;
        return !deep;
      },
      /*allow_exceptions=*/false);
  std::string problem;
  if (deep) problem = "brackets are nested too deeply";
  if (root.is_discarded() && problem.empty()) problem = "this is no JSON";
  FlightFile file;
  if (problem.empty()) {
    Fields fields(root, "", problem);
    if (fields.Text("format") != "apogee flight record") {
      fields.Fail("\"format\" must be \"apogee flight record\"");
    }
    if (fields.Whole("version", 0, INT64_MAX) != 1) fields.Fail("\"version\" must be 1");
    file.num_ranks = static_cast<int>(fields.Whole("num_ranks", 1, kMaxRanks));
    file.rank = static_cast<int>(fields.Whole("rank", 0, file.num_ranks - 1));
    file.host = fields.Text("host");
    file.function = fields.Text("function");
    file.age_ms = fields.Ms("age_ms");
    size_t i = 0;
    for (const Json& json : fields.List("channels")) {
      file.channels.push_back(ParseChannel(json, i++, problem));
    }
    i = 0;
    for (const Json& json : fields.List("calls")) {
      file.calls.push_back(ParseCall(json, i++, file, problem));
    }
  }
  if (!problem.empty()) return DataLoss(path, ": ", problem);
  return file;
}

absl::StatusOr<FlightFiles> ReadFlightFiles(const std::string& directory) {
  std::error_code error;
  std::map<int, std::string> paths;
  for (auto it = std::filesystem::directory_iterator(directory, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const auto rank = RankOfFile(it->path().filename().string());
    if (rank) paths[*rank] = it->path().string();
  }
  if (error) return NotFound(directory, ": ", error.message());
  if (paths.empty()) {
    return NotFound(directory,
                    ": there are no flight records in it, rank0.json and so on; give the "
                    "folder that --flight-records named in a launch that failed");
  }
  FlightFiles files;
  for (const auto& [rank, path] : paths) {
    APOGEE_ASSIGN_OR_RETURN(
        const std::string text,
        checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), path, kMaxFileBytes));
    APOGEE_ASSIGN_OR_RETURN(FlightFile file, ParseFlightFile(text, path));
    if (file.rank != rank) {
      return DataLoss(path, ": this is the record of rank ", file.rank, "; it was renamed");
    }
    if (!files.ranks.empty() && file.num_ranks != files.num_ranks) {
      return DataLoss(path, ": a launch of ", file.num_ranks, " ranks, where other records are of ",
                      files.num_ranks, "; keep the records of one launch in a folder");
    }
    files.num_ranks = file.num_ranks;
    files.ranks.emplace(rank, std::move(file));
  }
  return files;
}

}  // namespace apogee::tools
