// SPDX-License-Identifier: Apache-2.0

// Reads a report's page, to compare what it shows with the files that it was made from.
//
//   const Page page = ReadPage(text);
//   for (const Line& line : page.Chart("Loss").lines) ... line.points ...
//   page.Rows("memory")[1];                       // the cells of a table's row
#ifndef APOGEE_TESTS_REPORT_PAGE_H_
#define APOGEE_TESTS_REPORT_PAGE_H_

#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "apogee/tests/support/files/xml.h"

namespace apogee::testing {

struct PlottedPoint {
  double x = 0, y = 0;
};
struct PlottedLine {
  std::string label, classes;
  std::vector<PlottedPoint> points;  // values, computed from the pixels
};
struct PlottedChart {
  std::string title;
  // How much of a value is a pixel; of a logarithmic axis: the factor.
  double x_pixel = 0, y_pixel = 0;
  bool is_log = false;
  std::vector<PlottedLine> lines;

  // Whether a line passes through the point, within a pixel.
  bool Has(size_t line, double x, double y) const {
    for (const PlottedPoint& point : lines[line].points) {
      const double off = is_log ? std::abs(std::log(point.y / y)) : std::abs(point.y - y);
      if (std::abs(point.x - x) <= x_pixel && off <= y_pixel) return true;
    }
    return false;
  }
};

struct Page {
  std::vector<XmlElement> elements;
  std::vector<PlottedChart> charts;
  std::string text;  // of all elements

  // The chart whose title begins so.
  const PlottedChart& Chart(const std::string& title) const {
    for (const PlottedChart& chart : charts) {
      if (chart.title.starts_with(title)) return chart;
    }
    ADD_FAILURE() << "no chart " << title;
    static const PlottedChart kNone;
    return kNone;
  }
  size_t Count(const std::string& name) const {
    size_t count = 0;
    for (const XmlElement& element : elements) count += element.name == name;
    return count;
  }
  // The attributes of the elements that have the attribute `name`.
  std::vector<std::map<std::string, std::string>> With(const std::string& name) const {
    std::vector<std::map<std::string, std::string>> found;
    for (const XmlElement& element : elements) {
      if (element.attributes.contains(name)) found.push_back(element.attributes);
    }
    return found;
  }
};

inline PlottedLine ReadLine(const XmlElement& element, std::map<std::string, double> place) {
  PlottedLine line{element.attributes.at("data-label"), element.attributes.at("class"), {}};
  std::istringstream points(element.attributes.at("points"));
  for (std::string pair; points >> pair;) {
    const double px = std::stod(pair), py = std::stod(pair.substr(pair.find(',') + 1));
    const double x = (px - place["left"]) / place["width"];
    const double y = (place["top"] + place["height"] - py) / place["height"];
    EXPECT_TRUE(x > -1e-3 && x < 1.001 && y > -1e-3 && y < 1.001) << pair << " is outside";
    const double x_range = place["x-end"] - place["x-begin"];
    line.points.push_back({place["x-begin"] + x * x_range,
                           place.contains("log")
                               ? place["y-begin"] * std::pow(place["y-end"] / place["y-begin"], y)
                               : place["y-begin"] + y * (place["y-end"] - place["y-begin"])});
  }
  return line;
}

// Removes what is between the tags of an element whose contents are no XML.
inline void Empty(const std::string& name, std::string& page) {
  const size_t begin = page.find("<" + name + ">") + name.size() + 2;
  const size_t end = page.find("</" + name + ">", begin);
  ASSERT_NE(end, std::string::npos) << name;
  page.erase(begin, end - begin);
}

// Fails the test if the page is not well-formed.
inline Page ReadPage(std::string text) {
  const std::string first = "<!DOCTYPE html>\n";
  EXPECT_TRUE(text.starts_with(first));
  text.erase(0, first.size());
  Empty("style", text);
  Empty("script", text);
  Page page;
  page.elements = ParseXml(text);
  std::map<std::string, double> place;
  for (const XmlElement& element : page.elements) {
    page.text += element.text + "\n";
    const auto& attributes = element.attributes;
    if (element.name == "svg" && attributes.contains("data-left")) {
      place.clear();
      for (const auto& [key, value] : attributes) {
        if (key.starts_with("data-")) place[key.substr(5)] = std::stod(value);
      }
      PlottedChart& chart = page.charts.emplace_back();
      chart.title = attributes.at("aria-label");
      chart.is_log = place.contains("log");
      chart.x_pixel = (place["x-end"] - place["x-begin"]) / place["width"];
      chart.y_pixel = (chart.is_log ? std::log(place["y-end"] / place["y-begin"])
                                    : place["y-end"] - place["y-begin"]) /
                      place["height"];
    }
    if (element.name == "polyline") page.charts.back().lines.push_back(ReadLine(element, place));
  }
  return page;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_REPORT_PAGE_H_
