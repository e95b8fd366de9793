// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/files/run_record.h"

#include "apogee/core/text/text.h"
#include "apogee/report/files/flat_json.h"

namespace apogee::report {

std::string ToJson(const RunRecord& record) {
  std::string options;
  for (const auto& [key, value] : record.options) {
    options.append(options.empty() ? "" : ",").append(JsonQuoted(key)).append(":");
    options += JsonQuoted(value);
  }
  return internal::Concat("{\"model\":", JsonQuoted(record.model),
                          ",\"parameters\":", record.parameters, ",\"ranks\":", record.ranks,
                          ",\"plugin\":", JsonQuoted(record.plugin), ",\"options\":{", options,
                          "}}\n");
}

absl::StatusOr<RunRecord> ReadRunRecord(const std::string& text, const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const FlatJson json, FlatJson::Read(text, path));
  RunRecord record;
  APOGEE_ASSIGN_OR_RETURN(record.model, json.Text("/model"));
  APOGEE_ASSIGN_OR_RETURN(record.parameters, json.Count("/parameters"));
  APOGEE_ASSIGN_OR_RETURN(record.ranks, json.Count("/ranks"));
  APOGEE_ASSIGN_OR_RETURN(record.plugin, json.Text("/plugin"));
  APOGEE_ASSIGN_OR_RETURN(const auto keys, json.Children("/options"));
  for (const std::string& key : keys) {
    APOGEE_ASSIGN_OR_RETURN(record.options[key], json.Text(FlatJson::Child("/options", key)));
  }
  return record;
}

std::string ToJson(const TrafficRecord& record) {
  std::string rows;
  for (const TrafficRecord::Row& row : record.rows) {
    rows += internal::Concat(rows.empty() ? "" : ",", JsonQuoted(row.collective),
                             ":{\"calls\":", row.calls, ",\"bytes\":", row.bytes, "}");
  }
  return internal::Concat("{\"steps\":", record.steps, ",\"collectives\":{", rows, "}}\n");
}

absl::StatusOr<TrafficRecord> ReadTrafficRecord(const std::string& text, const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const FlatJson json, FlatJson::Read(text, path));
  TrafficRecord record;
  APOGEE_ASSIGN_OR_RETURN(record.steps, json.Count("/steps"));
  if (record.steps == 0) return DataLoss(path, ": \"/steps\" is 0; it must be at least 1");
  APOGEE_ASSIGN_OR_RETURN(const auto names, json.Children("/collectives"));
  for (const std::string& name : names) {
    TrafficRecord::Row& row = record.rows.emplace_back();
    row.collective = name;
    const std::string pointer = FlatJson::Child("/collectives", name);
    APOGEE_ASSIGN_OR_RETURN(row.calls, json.Count(pointer + "/calls"));
    APOGEE_ASSIGN_OR_RETURN(row.bytes, json.Count(pointer + "/bytes"));
  }
  return record;
}

}  // namespace apogee::report
