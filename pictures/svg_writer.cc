// SPDX-License-Identifier: Apache-2.0

#include "apogee/pictures/svg_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace apogee {

void SvgWriter::Text(double x, double y, const std::string& text, const std::string& attributes) {
  body_ += "<text x=\"" + Number(x) + "\" y=\"" + Number(y) + "\"" +
           (attributes.empty() ? "" : " " + attributes) + ">" + Escape(text) + "</text>\n";
}

void SvgWriter::Rect(const SvgBox& box, const std::string& attributes, const std::string& tooltip) {
  body_ += "<rect x=\"" + Number(box.x) + "\" y=\"" + Number(box.y) + "\" width=\"" +
           Number(box.width) + "\" height=\"" + Number(box.height) + "\" " + attributes +
           (tooltip.empty() ? "/>\n" : "><title>" + Escape(tooltip) + "</title></rect>\n");
}

void SvgWriter::Polyline(const std::vector<std::pair<double, double>>& points,
                         const std::string& attributes) {
  body_ += "<polyline points=\"";
  for (size_t i = 0; i < points.size(); ++i) {
    body_ += (i == 0 ? "" : " ") + Number(points[i].first) + "," + Number(points[i].second);
  }
  body_ += "\" " + attributes + "/>\n";
}

void SvgWriter::Line(double x1, double y1, double x2, double y2, const std::string& attributes) {
  body_ += "<line x1=\"" + Number(x1) + "\" y1=\"" + Number(y1) + "\" x2=\"" + Number(x2) +
           "\" y2=\"" + Number(y2) + "\" " + attributes + "/>\n";
}

std::string SvgWriter::Document(double width, double height) const {
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" +
         Inline(width, height,
                "xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Number(width) + "\" height=\"" +
                    Number(height) + "\"");
}

std::string SvgWriter::Inline(double width, double height, const std::string& attributes) const {
  return "<svg " + attributes + " viewBox=\"0 0 " + Number(width) + " " + Number(height) +
         "\" font-family=\"sans-serif\" font-size=\"12\">\n" + body_ + "</svg>\n";
}

std::string SvgWriter::Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      // XML has no control characters.
      default:
        escaped += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return escaped;
}

std::string SvgWriter::Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

std::string SvgWriter::Colour(int rank, int num_ranks) {
  const double hue = std::fmod(210 + 360.0 * rank / num_ranks, 360) / 30;
  const double lightness = rank % 2 == 0 ? 0.42 : 0.62, saturation = 0.6;
  std::string colour = "#";
  for (const double offset : {0.0, 8.0, 4.0}) {
    const double k = std::fmod(offset + hue, 12);
    const double value = lightness - saturation * std::min(lightness, 1 - lightness) *
                                         std::clamp(std::min(k - 3, 9 - k), -1.0, 1.0);
    char text[8];
    std::snprintf(text, sizeof(text), "%02x",
                  static_cast<unsigned>(std::lround(255 * value)) & 255);
    colour += text;
  }
  return colour;
}
}  // namespace apogee
