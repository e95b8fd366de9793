// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/charts/inline_svg.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <vector>

#include "apogee/core/text/json_reader.h"
#include "apogee/core/text/utf8.h"

namespace apogee::report {
namespace {

constexpr std::array<std::string_view, 7> kElements = {"svg",  "title", "defs", "pattern",
                                                       "rect", "line",  "text"};
constexpr std::array<std::string_view, 21> kAttributes = {"x",
                                                          "y",
                                                          "x1",
                                                          "y1",
                                                          "x2",
                                                          "y2",
                                                          "width",
                                                          "height",
                                                          "viewBox",
                                                          "xmlns",
                                                          "fill",
                                                          "stroke",
                                                          "stroke-width",
                                                          "fill-opacity",
                                                          "font-family",
                                                          "font-size",
                                                          "font-weight",
                                                          "text-anchor",
                                                          "id",
                                                          "patternUnits",
                                                          "patternTransform"};

template <size_t kCount>
bool Has(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& path, const std::string& prefix)
      : text_(text), path_(path), prefix_(prefix) {}

  absl::StatusOr<std::string> Read() {
    if (!IsUtf8(text_)) return Wrong("it is not UTF-8");
    if (text_.starts_with("<?xml ")) at_ = std::min(text_.find("?>"), text_.size() - 2) + 2;
    SkipSpace();
    do {
      APOGEE_RETURN_IF_ERROR(text_.substr(at_).starts_with("</") ? ReadEnd() : ReadElement());
      if (open_.empty()) break;
      const size_t end = std::min(text_.find('<', at_), text_.size());
      APOGEE_RETURN_IF_ERROR(CopyText(end));
    } while (at_ < text_.size());
    SkipSpace();
    if (!open_.empty()) return Wrong("an element has no end");
    if (at_ < text_.size()) return Wrong("there is something behind the picture");
    return std::move(out_);
  }

 private:
  absl::Status Wrong(const std::string& what) const {
    return DataLoss(path_, ": byte ", at_, ": ", what,
                    "; this is no picture that apogee drew: remove it, or draw it again");
  }
  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  std::string_view ReadName() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '-')) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }
  bool Take(std::string_view words) {
    if (!text_.substr(at_).starts_with(words)) return false;
    at_ += words.size();
    return true;
  }

  absl::Status CopyText(size_t end) {
    const std::string_view text = text_.substr(at_, end - at_);
    if (text.find('>') != std::string_view::npos) return Wrong("an unescaped > in a text");
    out_ += text;
    at_ = end;
    return absl::OkStatus();
  }

  absl::Status ReadEnd() {
    at_ += 2;
    const std::string_view name = ReadName();
    if (open_.empty() || open_.back() != name || !Take(">")) return Wrong("a wrong end tag");
    open_.pop_back();
    out_.append("</").append(name).append(">");
    return absl::OkStatus();
  }

  absl::Status ReadElement() {
    if (!Take("<")) return Wrong("an element is missing");
    const std::string_view name = ReadName();
    if (!Has(kElements, name)) return Wrong("the element <" + Shortened(std::string(name)) + ">");
    if (open_.empty() != (name == "svg")) return Wrong("<svg> must be around all others");
    // In a page a title holds HTML, so it must not hold elements.
    if (!open_.empty() && open_.back() == "title") return Wrong("an element in a <title>");
    out_.append("<").append(name);
    while (Take(" ")) APOGEE_RETURN_IF_ERROR(ReadAttribute());
    if (Take("/>")) {
      out_ += "/>";
      return absl::OkStatus();
    }
    if (!Take(">")) return Wrong("a wrong tag");
    out_ += ">";
    open_.push_back(name);
    return absl::OkStatus();
  }

  absl::Status ReadAttribute() {
    const std::string_view name = ReadName();
    const bool known = Has(kAttributes, name) || name.starts_with("data-");
    if (!known) return Wrong("the attribute " + Shortened(std::string(name)));
    if (!Take("=\"")) return Wrong("an attribute without a value in double quotes");
    const size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) return Wrong("an attribute without an end");
    std::string value(text_.substr(at_, end - at_));
    if (value.find_first_of("<>") != std::string::npos) return Wrong("an unescaped < or >");
    if (name == "id" && IsWord(value)) {
      value.insert(0, prefix_);
    } else if (value.starts_with("url(#") && value.ends_with(")") &&
               IsWord(value.substr(5, value.size() - 6))) {
      value.insert(5, prefix_);
    } else if (!name.starts_with("data-") && name != "xmlns" && !IsPlain(value)) {
      return Wrong("the value of " + std::string(name));
    }
    if (name != "xmlns") out_.append(" ").append(name).append("=\"").append(value).append("\"");
    at_ = end + 1;
    return absl::OkStatus();
  }
  static bool IsWord(std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_';
    });
  }
  // A number, a colour, a name, or a rotation.
  static bool IsPlain(std::string_view text) {
    if (text.starts_with("rotate(") && text.ends_with(")")) {
      text.remove_prefix(7);
      text.remove_suffix(1);
    }
    return std::ranges::all_of(text, [](unsigned char c) {
      return std::isalnum(c) != 0 ||
             std::string_view("#.,+- %").find(static_cast<char>(c)) != std::string_view::npos;
    });
  }

  const std::string_view text_;
  const std::string &path_, &prefix_;
  size_t at_ = 0;
  std::vector<std::string_view> open_;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> InlineSvg(const std::string& text, const std::string& path,
                                      const std::string& prefix) {
  return Reader(text, path, prefix).Read();
}

}  // namespace apogee::report
