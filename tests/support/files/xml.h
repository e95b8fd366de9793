// SPDX-License-Identifier: Apache-2.0

// Parses an XML document and checks that it is well-formed: tags closed in order, quoted attributes
// without repetition, escaped text. Enough for the documents that the library writes.
//
//   const std::vector<XmlElement> elements = ParseXml(text);      // or fails the test
//   elements[0].attributes.at("width")
#ifndef APOGEE_TESTS_SUPPORT_FILES_XML_H_
#define APOGEE_TESTS_SUPPORT_FILES_XML_H_

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <string>
#include <vector>

namespace apogee::testing {

struct XmlElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // directly inside, unescaped
};

inline std::string UnescapeXml(const std::string& text) {
  static const std::map<std::string, char> kEntities = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_TRUE(text[i] != '<' && text[i] != '>') << text;
    EXPECT_TRUE(static_cast<unsigned char>(text[i]) >= 0x20 || text[i] == '\n') << text;
    if (text[i] != '&') {
      plain += text[i];
      continue;
    }
    const size_t end = std::min(text.find(';', i), text.size());
    const auto entity = kEntities.find(text.substr(i + 1, end - i - 1));
    EXPECT_TRUE(entity != kEntities.end()) << text;
    if (entity != kEntities.end()) plain += entity->second;
    i = end;
  }
  return plain;
}

// The elements in the order in which they begin.
inline std::vector<XmlElement> ParseXml(const std::string& document) {
  static const std::regex kTag(R"re(([A-Za-z]+)((?: [A-Za-z0-9:-]+="[^"]*")*)(/?))re");
  static const std::regex kAttribute(R"re( ([A-Za-z0-9:-]+)="([^"]*)")re");
  std::vector<XmlElement> elements;
  std::vector<size_t> open;
  size_t at = document.starts_with("<?xml") ? document.find("?>") + 2 : 0;
  while (at < document.size()) {
    const size_t begin = std::min(document.find('<', at), document.size());
    const std::string text = UnescapeXml(document.substr(at, begin - at));
    if (open.empty()) {
      EXPECT_EQ(text.find_first_not_of(" \n"), std::string::npos) << "text outside: " << text;
    } else {
      elements[open.back()].text += text;
    }
    if (begin == document.size()) break;
    const size_t end = document.find('>', begin);
    const std::string tag = document.substr(begin + 1, end - begin - 1);
    at = end == std::string::npos ? document.size() : end + 1;
    if (tag.starts_with("/")) {
      EXPECT_TRUE(!open.empty() && elements[open.back()].name == tag.substr(1)) << tag;
      if (!open.empty()) open.pop_back();
      continue;
    }
    std::smatch match;
    if (!std::regex_match(tag, match, kTag)) {
      ADD_FAILURE() << "not a tag: <" << tag << ">";
      continue;
    }
    EXPECT_TRUE(!open.empty() || elements.empty()) << "a second root: " << tag;
    XmlElement element{.name = match[1], .attributes = {}, .text = {}};
    const std::string attributes = match[2];
    for (std::sregex_iterator it(attributes.begin(), attributes.end(), kAttribute), none;
         it != none; ++it) {
      EXPECT_TRUE(element.attributes.emplace((*it)[1], UnescapeXml((*it)[2])).second) << tag;
    }
    if (match[3].length() == 0) open.push_back(elements.size());
    elements.push_back(std::move(element));
  }
  EXPECT_TRUE(open.empty() && !elements.empty()) << "elements that do not end";
  return elements;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_XML_H_
