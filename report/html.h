// SPDX-License-Identifier: Apache-2.0

// Pieces of HTML. Every tag is closed, so a page is well-formed XML but for its first line.
//
//   HtmlTable table({"run", "loss"});
//   table.Row({HtmlText(name), "2.5"});
//   page += table.Close();
#ifndef APOGEE_REPORT_HTML_H_
#define APOGEE_REPORT_HTML_H_

#include <string>
#include <utility>
#include <vector>

namespace apogee::report {

// Text from anywhere, for HTML and for attributes in double quotes: escaped, in valid UTF-8, and
// without control characters.
std::string HtmlText(const std::string& text);

// "<p class=\"note\">text</p>".
std::string HtmlNote(const std::string& text);

class HtmlTable {
 public:
  explicit HtmlTable(std::vector<std::string> heads) : heads_(std::move(heads)) {}
  // As many cells as heads. They are markup. Cells that begin like a number, or with a dash, are
  // aligned to the right; the heads are aligned as the cells of the first row.
  void Row(const std::vector<std::string>& cells);
  std::string Close() const;

 private:
  std::vector<std::string> heads_;
  std::string head_, body_;
};

}  // namespace apogee::report

#endif  // APOGEE_REPORT_HTML_H_
