// SPDX-License-Identifier: Apache-2.0

// Pictures in a page: ours come through, and nothing else does.
#include "apogee/report/charts/inline_svg.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <random>

#include "apogee/pictures/svg_writer.h"
#include "apogee/pictures/timeline/timeline_svg.h"
#include "apogee/tests/support/files/mutate_text.h"
#include "apogee/tests/support/files/xml.h"

namespace apogee::report {
namespace inline_svg_test {

using apogee::testing::ParseXml;
using apogee::testing::XmlElement;
using ::testing::HasSubstr;

std::string Timeline() {
  return TimelineSvg(StepTimeline({{.rank = 0, .begin_ns = 0, .end_ns = 2'000'000},
                                   {.rank = 1, .begin_ns = 1'000'000, .end_ns = 3'000'000}}),
                     "a <title> & \"more\"");
}

TEST(InlineSvgTest, KeepsOurPictures) {
  const std::string drawn = Timeline();
  const auto svg = InlineSvg(drawn, "t.svg", "r0-");
  ASSERT_TRUE(svg.ok()) << Message(svg.status());
  const std::vector<XmlElement> before = ParseXml(drawn), after = ParseXml(*svg);
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i].name, after[i].name);
    EXPECT_EQ(before[i].text, after[i].text);
    auto expected = before[i].attributes;
    expected.erase("xmlns");
    if (expected.contains("id")) expected["id"] = "r0-bubble";
    if (expected["fill"] == "url(#bubble)") expected["fill"] = "url(#r0-bubble)";
    if (expected["fill"].empty()) expected.erase("fill");
    EXPECT_EQ(expected, after[i].attributes);
  }
  EXPECT_THAT(*svg, HasSubstr("url(#r0-bubble)"));
}

TEST(InlineSvgTest, RefusesWhatWeDoNotDraw) {
  const auto in = [](const std::string& inside) { return "<svg>" + inside + "</svg>"; };
  for (const auto& [text, problem] : std::vector<std::pair<std::string, std::string>>{
           {"", "byte 0: an element is missing"},
           {"text", "an element is missing"},
           {"<rect/>", "<svg> must be around all others"},
           {in(in("")), "<svg> must be around all others"},
           {in("<script>alert(1)</script>"), "the element <script>"},
           {in("<image href=\"http://a/b.png\"/>"), "the element <image>"},
           {in("<a href=\"http://a\"/>"), "the element <a>"},
           {in("<foreignObject/>"), "the element <foreignObject>"},
           {in("<style>*{}</style>"), "the element <style>"},
           {in("<SCRIPT/>"), "the element <SCRIPT>"},
           {in("<rect onload=\"alert(1)\"/>"), "the attribute onload"},
           {in("<rect style=\"fill:url(http://a)\"/>"), "the attribute style"},
           {in("<rect href=\"#a\"/>"), "the attribute href"},
           {in("<rect fill=\"url(http://a/b)\"/>"), "the value of fill"},
           {in("<rect fill=\"url(#a) url(http://a/b)\"/>"), "the value of fill"},
           {in("<rect fill=\"u&#114;l(http://a/b)\"/>"), "the value of fill"},
           {in("<rect id=\"a b&\"/>"), "the value of id"},
           {in("<rect fill='red'/>"), "a value in double quotes"},
           {in("<rect fill=\"red"), "an attribute without an end"},
           {in("<title><text>a</text></title>"), "an element in a <title>"},
           {in("<!-- a -->"), "the element <>"},
           {in("<![CDATA[a]]>"), "the element <>"},
           {"<!DOCTYPE svg><svg/>", "the element <>"},
           {in("a > b"), "an unescaped >"},
           {in("<rect>"), "a wrong end tag"},
           {in("</rect>"), "a wrong end tag"},
           {"<svg>", "an element has no end"},
           {"<svg/><svg/>", "something behind the picture"},
           {"<svg></svg></div>", "something behind the picture"},
           {in("\xff"), "it is not UTF-8"}}) {
    const auto svg = InlineSvg(text, "p.svg", "r0-");
    ASSERT_FALSE(svg.ok()) << text;
    EXPECT_TRUE(absl::IsDataLoss(svg.status())) << text;
    EXPECT_THAT(Message(svg.status()), HasSubstr(problem)) << text;
    EXPECT_THAT(Message(svg.status()), ::testing::StartsWith("p.svg: byte ")) << text;
  }
}

// The tags of a document, without the values of attributes and without texts.
std::string TagsOf(const std::string& text) {
  std::string tags;
  bool in_tag = false, in_value = false;
  for (const char c : text) {
    if (!in_tag) in_tag = c == '<';
    if (!in_tag) continue;
    if (c == '"') in_value = !in_value;
    if (!in_value) tags += c;
    if (c == '>' && !in_value) in_tag = false;
  }
  return tags;
}

// Whatever comes through is well-formed and has none of the things that load or run.
TEST(InlineSvgTest, RandomDamage) {
  const std::string text = Timeline();
  std::mt19937_64 random(1);
  int num_good = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto svg = InlineSvg(
        apogee::testing::MutatedText(
            text, {"<script>", "</svg>", "<", ">", "\"", " onload=\"a\"", "url(", "</title>", "&"},
            random),
        "p.svg", "r0-");
    if (!svg.ok()) continue;
    ++num_good;
    EXPECT_TRUE(svg->starts_with("<svg") && svg->ends_with(">"));
    const std::string tags = TagsOf(*svg);
    for (const char* bad : {"<script", " on", "href", "style"}) {
      EXPECT_EQ(tags.find(bad), std::string::npos) << tags;
    }
  }
  EXPECT_GT(num_good, 10);
}

}  // namespace inline_svg_test
}  // namespace apogee::report
