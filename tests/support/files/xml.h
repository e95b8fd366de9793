// SPDX-License-Identifier: Apache-2.0

// Parses an XML document and checks that it is well-formed: tags closed in order, quoted attributes
// without repetition, escaped text. Enough for the documents that the library writes.
//
//   const std::vector<XmlElement> elements = ParseXml(text);      // or fails the test
//   elements[0].attributes.at("width")
#ifndef APOGEE_TESTS_SUPPORT_FILES_XML_H_
#define APOGEE_TESTS_SUPPORT_FILES_XML_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
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

// Reads the inside of a tag: a name, then attributes in double quotes, each after one blank. False
// if it is none. `closed`: it ends with a slash.
inline bool ReadTag(const std::string& tag, XmlElement& element, bool& closed) {
  const auto name_at = [&tag](size_t at, const std::string& more) {
    size_t end = at;
    while (end < tag.size() && (std::isalnum(static_cast<unsigned char>(tag[end])) != 0 ||
                                more.find(tag[end]) != std::string::npos)) {
      ++end;
    }
    return tag.substr(at, end - at);
  };
  element.name = name_at(0, "");
  size_t at = element.name.size();
  while (at < tag.size() && tag[at] == ' ') {
    const std::string name = name_at(at + 1, ":-");
    const size_t begin = at + 1 + name.size() + 2;
    if (name.empty() || tag.compare(begin - 2, 2, "=\"") != 0) return false;
    const size_t end = tag.find('"', begin);
    if (end == std::string::npos) return false;
    const std::string value = UnescapeXml(tag.substr(begin, end - begin));
    EXPECT_TRUE(element.attributes.emplace(name, value).second) << tag;
    at = end + 1;
  }
  closed = tag.substr(at) == "/";
  return !element.name.empty() && (closed || at == tag.size());
}

// The elements in the order in which they begin.
inline std::vector<XmlElement> ParseXml(const std::string& document) {
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
    XmlElement element;
    bool closed = false;
    if (!ReadTag(tag, element, closed)) {
      ADD_FAILURE() << "not a tag: <" << tag << ">";
      continue;
    }
    EXPECT_TRUE(!open.empty() || elements.empty()) << "a second root: " << tag;
    if (!closed) open.push_back(elements.size());
    elements.push_back(std::move(element));
  }
  EXPECT_TRUE(open.empty() && !elements.empty()) << "elements that do not end";
  return elements;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_XML_H_
