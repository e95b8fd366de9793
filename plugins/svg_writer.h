// SPDX-License-Identifier: Apache-2.0

// Writes the few SVG elements that pictures are made of, escaped, one per line.
//
//   SvgWriter svg;
//   svg.Rect({.x = 0, .y = 0, .width = 10, .height = 5}, "fill=\"red\"", "a < b");
//   svg.Text(0, 20, "a < b");
//   std::string document = svg.Document(100, 50);
#ifndef APOGEE_PLUGINS_SVG_WRITER_H_
#define APOGEE_PLUGINS_SVG_WRITER_H_

#include <string>

namespace apogee {

struct SvgBox {
  double x = 0, y = 0, width = 0, height = 0;
};

class SvgWriter {
 public:
  // `attributes` and Raw's text are markup already.
  void Raw(const std::string& markup) { body_ += markup; }
  void Text(double x, double y, const std::string& text, const std::string& attributes = "");
  void Rect(const SvgBox& box, const std::string& attributes, const std::string& tooltip = "");
  // One XML document of all that was written, `width` times `height` pixels.
  std::string Document(double width, double height) const;

  static std::string Escape(const std::string& text);
  static std::string Number(double value);
  // Of a rank: evenly spaced hues; neighbours in rank are apart in lightness, too. In hexadecimal,
  // which every program that draws SVG knows.
  static std::string Colour(int rank, int num_ranks);

 private:
  std::string body_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SVG_WRITER_H_
