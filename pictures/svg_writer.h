// SPDX-License-Identifier: Apache-2.0

// SvgWriter: writes the few SVG elements that pictures need, escaped, one per line.
//
//   SvgWriter svg;
//   svg.Rect({.x = 0, .y = 0, .width = 10, .height = 5}, "fill=\"red\"", "a < b");
//   svg.Text(0, 20, "a < b");
//   svg.Polyline({{0, 0}, {10, 5}}, "stroke=\"red\" fill=\"none\"");
//   std::string document = svg.Document(100, 50);          // or Inline, for a page
#ifndef APOGEE_PICTURES_SVG_WRITER_H_
#define APOGEE_PICTURES_SVG_WRITER_H_

#include <string>
#include <utility>
#include <vector>

namespace apogee {

struct SvgBox {
  double x = 0, y = 0, width = 0, height = 0;
};

class SvgWriter {
 public:
  // `attributes` and Raw's text are markup and not escaped.
  void Raw(const std::string& markup) { body_ += markup; }
  void Text(double x, double y, const std::string& text, const std::string& attributes = "");
  void Rect(const SvgBox& box, const std::string& attributes, const std::string& tooltip = "");
  // Through the points (x, y).
  void Polyline(const std::vector<std::pair<double, double>>& points,
                const std::string& attributes);
  void Line(double x1, double y1, double x2, double y2, const std::string& attributes);
  // Returns everything written as one XML document of `width` by `height` pixels.
  std::string Document(double width, double height) const;
  // The same as an element of an HTML page, which may scale it. `attributes`: of <svg>.
  std::string Inline(double width, double height, const std::string& attributes) const;

  static std::string Escape(const std::string& text);
  static std::string Number(double value);
  // The colour of a rank, in hexadecimal, which every SVG program knows. Hues are evenly spaced;
  // neighbouring ranks differ in lightness, too.
  static std::string Colour(int rank, int num_ranks);

 private:
  std::string body_;
};

}  // namespace apogee

#endif  // APOGEE_PICTURES_SVG_WRITER_H_
