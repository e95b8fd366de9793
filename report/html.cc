// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/html.h"

#include "apogee/core/text/printable.h"
#include "apogee/core/text/utf8.h"
#include "apogee/pictures/svg_writer.h"

namespace apogee::report {

std::string HtmlText(const std::string& text) {
  std::string copy;
  return SvgWriter::Escape(Printable(std::string(ReadableUtf8(text, copy))));
}

std::string HtmlNote(const std::string& text) {
  return "<p class=\"note\">" + HtmlText(text) + "</p>\n";
}

void HtmlTable::Row(const std::vector<std::string>& cells) {
  const auto add = [](std::string& row, const std::string& tag, const std::string& cell,
                      bool is_number) {
    row.append("<").append(tag).append(is_number ? " class=\"number\">" : ">");
    row.append(cell).append("</").append(tag).append(">");
  };
  const bool is_first = body_.empty();
  body_ += "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    const bool is_number = cells[i].starts_with("–") || cells[i].find_first_of("0123456789+-") == 0;
    add(body_, "td", cells[i], is_number);
    if (is_first) add(head_, "th", heads_[i], is_number);
  }
  body_ += "</tr>\n";
}

std::string HtmlTable::Close() const {
  return "<div class=\"scroll\"><table><thead><tr>" + head_ + "</tr></thead><tbody>\n" + body_ +
         "</tbody></table></div>\n";
}

}  // namespace apogee::report
