// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "apogee/chunk/sharded_parameters.h"
#include "apogee/core/text/text.h"
#include "apogee/pictures/maps.h"
#include "apogee/pictures/svg_writer.h"
#include "apogee/plugins/gemini/chunk_homes.h"

namespace apogee {
namespace {

// In pixels.
constexpr double kMargin = 16, kRow = 16, kTop = 84, kTime = 640, kCurve = 110;
constexpr double kCharWidth = 6.7;  // names are in 11 px monospace
constexpr const char* kDeviceColour = "#2b6cb0";
constexpr const char* kHostColour = "#d69e2e";
constexpr const char* kDiskColour = "#805ad5";
constexpr const char* kOtherColour = "#a0aec0";

struct ChunkMapOptions {
  std::string title;
  // By chunk: "device", "host" or "disk".
  std::vector<std::string> parameter_homes, optimizer_homes;
  int64_t budget_bytes = 0;  // 0: none
};

class Picture {
 public:
  Picture(const chunk::ShardedParameters& parameters, const std::vector<chunk::ChunkEvent>& events,
          const ChunkMapOptions& options)
      : parameters_(parameters), events_(events), options_(options) {
    size_t longest = 10;
    for (size_t c = 0; c < parameters_.plan().size(); ++c) {
      names_.push_back(NameOf(c));
      longest = std::max(longest, names_.back().size());
    }
    homes_x_ = kMargin + kCharWidth * static_cast<double>(longest + 1);
    time_x_ = homes_x_ + 92;
    curve_y_ = kTop + kRow * static_cast<double>(names_.size()) + 30;
  }

  std::string Draw() {
    const double width = time_x_ + kTime + kMargin, height = curve_y_ + kCurve + 46;
    svg_.Raw("<title>" + SvgWriter::Escape(options_.title) + "</title>\n");
    svg_.Rect({0, 0, width, height}, "fill=\"white\"");
    svg_.Text(kMargin, 28, options_.title, "font-size=\"17\" font-weight=\"bold\"");
    svg_.Text(kMargin, 48,
              "A row per chunk: blue while its values are whole on the device. Left: where its "
              "shard and its optimizer's data live (blue: device, yellow: host, violet: disk).");
    svg_.Text(kMargin, kTop - 8, "first parameter", "font-weight=\"bold\"");
    svg_.Text(homes_x_, kTop - 8, "shard optim", "font-weight=\"bold\"");
    svg_.Text(time_x_, kTop - 8, "one step: " + std::to_string(events_.size()) + " events",
              "font-weight=\"bold\"");
    for (size_t c = 0; c < names_.size(); ++c) Row(c);
    Curves();
    return svg_.Document(width, height);
  }

 private:
  std::string NameOf(size_t chunk) const {
    const std::vector<chunk::ChunkItem>& items = parameters_.plan()[chunk].items;
    std::string name = parameters_.parameters()[items[0].parameter]->name();
    if (items.size() > 1) name += " +" + std::to_string(items.size() - 1);
    return name;
  }
  double X(size_t event) const {
    return time_x_ + kTime * static_cast<double>(event) /
                         static_cast<double>(std::max<size_t>(events_.size(), 1));
  }
  static std::string Fill(const std::string& home) {
    const char* colour = home == "device" ? kDeviceColour
                         : home == "host" ? kHostColour
                                          : kDiskColour;
    return std::string("fill=\"") + colour + "\"";
  }

  void Row(size_t chunk) {
    const double y = kTop + kRow * static_cast<double>(chunk);
    svg_.Text(kMargin, y + 11, names_[chunk], "font-family=\"monospace\" font-size=\"11\"");
    const auto home = [&](const std::vector<std::string>& homes, double x, const char* what) {
      if (chunk < homes.size()) {
        svg_.Rect({x, y + 2, 34, kRow - 4}, Fill(homes[chunk]),
                  names_[chunk] + ": " + what + " on the " + homes[chunk]);
      }
    };
    home(options_.parameter_homes, homes_x_, "shard");
    home(options_.optimizer_homes, homes_x_ + 40, "optimizer data");
    svg_.Rect({time_x_, y + kRow / 2, kTime, 0.5}, "fill=\"#e2e8f0\"");
    bool open = false;
    size_t from = 0;
    for (size_t e = 0; e < events_.size(); ++e) {
      if (events_[e].chunk != chunk || events_[e].gathered == open) continue;
      if (open) Bar(chunk, from, e);
      open = events_[e].gathered;
      from = e;
    }
    if (open) Bar(chunk, from, events_.size());
  }

  void Bar(size_t chunk, size_t from, size_t to) {
    const double y = kTop + kRow * static_cast<double>(chunk);
    svg_.Rect({X(from), y + 2, std::max(X(to) - X(from), 1.0), kRow - 4},
              Fill("device") + " data-chunk=\"" + std::to_string(chunk) + "\" data-from=\"" +
                  std::to_string(from) + "\" data-to=\"" + std::to_string(to) + "\"",
              names_[chunk] + ": " + FormatBytes(parameters_.GatheredBytes(chunk)));
  }

  // Draws model data, with everything else on top of it.
  void Curves() {
    int64_t most = options_.budget_bytes;
    for (const chunk::ChunkEvent& event : events_) {
      most = std::max(most, event.model_bytes + event.other_bytes);
    }
    const auto height = [most](int64_t bytes) {
      return kCurve * static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(most, 1));
    };
    for (size_t e = 0; e < events_.size(); ++e) {
      const double wide = X(e + 1) - X(e);
      const double model = height(events_[e].model_bytes), other = height(events_[e].other_bytes);
      const std::string tip = "event " + std::to_string(e) + ": model data " +
                              FormatBytes(events_[e].model_bytes) + ", other " +
                              FormatBytes(events_[e].other_bytes);
      svg_.Rect({X(e), curve_y_ + kCurve - model, wide, model}, Fill("device"), tip);
      svg_.Rect({X(e), curve_y_ + kCurve - model - other, wide, other},
                std::string("fill=\"") + kOtherColour + "\"", tip);
    }
    svg_.Text(kMargin, curve_y_ + 12, "bytes on the device", "font-weight=\"bold\"");
    svg_.Text(kMargin, curve_y_ + 30, "blue: model data; grey: the rest");
    if (options_.budget_bytes == 0) return;
    const double y = curve_y_ + kCurve - height(options_.budget_bytes);
    svg_.Rect({time_x_, y, kTime, 1.5}, "fill=\"#c53030\"", "budget of model data");
    svg_.Text(kMargin, curve_y_ + 48, "red: budget, " + FormatBytes(options_.budget_bytes));
  }

  const chunk::ShardedParameters& parameters_;
  const std::vector<chunk::ChunkEvent>& events_;
  const ChunkMapOptions& options_;
  std::vector<std::string> names_;
  double homes_x_, time_x_, curve_y_;
  SvgWriter svg_;
};

}  // namespace

std::string ChunkMapSvg(const GeminiPlugin& plugin, const std::string& title) {
  ChunkMapOptions options{.title = title,
                          .budget_bytes = plugin.options().placement.device_budget_bytes};
  const ChunkHomes& homes = plugin.homes();
  for (size_t c = 0; c < plugin.chunks().plan().size(); ++c) {
    options.parameter_homes.push_back(homes.NameOf(homes.parameter_homes()[c]));
    options.optimizer_homes.push_back(homes.NameOf(homes.optimizer_home(c)));
  }
  return Picture(plugin.chunks(), plugin.chunk_record().last_step(), options).Draw();
}

}  // namespace apogee
