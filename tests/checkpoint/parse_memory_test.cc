// SPDX-License-Identifier: Apache-2.0

// Whatever text comes: no parser has more than four times its bytes and 1 MiB at once.
#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>

#include "apogee/checkpoint/format/manifest.h"
#include "apogee/checkpoint/format/safetensors_header.h"
#include "apogee/checkpoint/hf/hf_index.h"
#include "apogee/nn/models/hf_config.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define APOGEE_OWN_NEW 0  // the sanitizer's own must stay, so nothing is counted
#else
#define APOGEE_OWN_NEW 1
#endif

namespace {

std::atomic<size_t> live_bytes{0};
std::atomic<size_t> peak_bytes{0};

}  // namespace

#if APOGEE_OWN_NEW
constexpr size_t kFront = 16;  // before each block: its size

void* operator new(size_t bytes) {
  void* block = std::malloc(bytes + kFront);
  if (block == nullptr) throw std::bad_alloc();
  *static_cast<size_t*>(block) = bytes;
  const size_t live = live_bytes += bytes;
  if (live > peak_bytes) peak_bytes = live;
  return static_cast<char*>(block) + kFront;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  void* block = static_cast<char*>(memory) - kFront;
  live_bytes -= *static_cast<size_t*>(block);
  std::free(block);
}
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, size_t) noexcept { operator delete(memory); }
#endif

namespace apogee {
namespace parse_memory_test {

std::string Repeated(const std::string& begin, size_t bytes,
                     const std::function<std::string(size_t)>& item) {
  std::string text = begin;
  for (size_t i = 0; text.size() < bytes; ++i) text += item(i);
  return text;
}

// Short names, in base 64.
std::string Name(size_t i) {
  static constexpr char kDigits[] =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
  std::string name;
  do name += kDigits[i % 64];
  while ((i /= 64) > 0);
  return name;
}

std::string Signed(std::string manifest) {
  manifest.pop_back();
  char digest[40];
  std::snprintf(digest, sizeof(digest), ",\"digest\":\"%016llx\"}\n",
                static_cast<unsigned long long>(XXH3_64bits(manifest.data(), manifest.size())));
  return manifest + digest;
}

std::vector<std::string> HostileTexts(size_t bytes) {
  const auto same = [](const char* item) { return [item](size_t) { return std::string(item); }; };
  const auto entry = [](const char* behind) {
    return [behind](size_t i) { return (i == 0 ? "\"" : ",\"") + Name(i) + behind; };
  };
  const std::string longest(bytes, 'x');
  const std::string manifest = "{\"apogee_checkpoint\":1,\"attributes\":{";
  const std::string tensors = manifest + "},\"files\":{\"f\":0},\"tensors\":{";
  const std::string slices = tensors + "\"w\":{\"dtype\":\"U8\",\"shape\":[9000000],\"slices\":[";
  const std::string slice = "{\"file\":\"f\",\"entry\":\"w\",\"digests\":\"\",\"runs\":[";
  std::vector<std::string> texts = {
      // Nothing that any of them wants.
      std::string(bytes, '['), "{\"a\":" + std::string(bytes, '['),
      Repeated("[[]", bytes, same(",[]")) + "]", Repeated("{\"a\":[[]", bytes, same(",[]")) + "]}",
      "\"" + longest + "\"", "\"" + longest, std::string(bytes, ' '), std::string(bytes, '1'),
      "{\"" + longest + "\":1}", "{\"a\":\"" + longest + "\"}", "{\"a\":" + std::string(bytes, '1'),
      "{\"" + longest + "\":1,\"" + longest + "\":1}", Repeated("{", bytes, entry("\":1")) + "}",
      Repeated("{", bytes, entry("\":{}")) + "}", Repeated("{\"a\":\"", bytes, same("\\n")) + "\"}",
      // Headers.
      Repeated("{\"__metadata__\":{", bytes, entry("\":\"\"")) + "}}",
      "{\"__metadata__\":{\"a\":\"" + longest + "\"}}",
      "{\"__metadata__\":{\"" + longest + "\":\"\"}}",
      "{\"__metadata__\":{\"" + longest + "\":\"\",\"" + longest + "\":\"\"}}",
      Repeated("{", bytes, entry("\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}")) +
          "}",
      Repeated("{", bytes,
               entry("\":{\"dtype\":\"U8\",\"shape\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"
                     "\"data_offsets\":[0,0]}")) +
          "}",
      "{\"a\":{\"dtype\":\"" + longest + "\"}}", "{\"a\":{\"" + longest + "\":1}}",
      Repeated("{\"a\":{\"shape\":[0", bytes, same(",0")) + "]}}",
      // Indices.
      Repeated("{\"weight_map\":{", bytes, entry("\":\"f\"")) + "}}",
      Repeated("{\"metadata\":{", bytes, entry("\":1")) + "},\"weight_map\":{}}",
      "{\"weight_map\":{\"a\":\"" + longest + "\"}}", "{\"weight_map\":{\"" + longest + "\":\"\"}}",
      "{\"metadata\":{\"" + longest + "\":1,\"" + longest + "\":1}}",
      "{\"metadata\":{\"a\":\"" + longest + "\"},\"weight_map\":{}}",
      // Manifests.
      Repeated(manifest, bytes, entry("\":\"\"")) + "},\"files\":{},\"tensors\":{}}",
      manifest + "\"a\":\"" + longest + "\"},\"files\":{},\"tensors\":{}}",
      manifest + "\"" + longest + "\":\"\",\"" + longest + "\":\"\"}}",
      Repeated(manifest + "},\"files\":{", bytes, entry("\":1")) + "},\"tensors\":{}}",
      Repeated(tensors, bytes, entry("\":{\"dtype\":\"U8\",\"shape\":[0],\"slices\":[]}")) + "}}",
      Repeated(slices + slice + "],\"entry\":\"v\"}", bytes,
               [&](size_t) { return "," + slice + "]}"; }) +
          "]}}}",
      Repeated(slices + slice + "]}", bytes, [&](size_t) { return "," + slice + "]}"; }) + "]}}}",
      Repeated(slices + slice + "0,1,0,1", bytes,
               [](size_t i) { return "," + std::to_string(i + 1) + ",1,0,1"; }) +
          "]}]}}}",
      Repeated(slices + slice + "0,1,0,1", bytes, same(",0,1,0,1")) + "]}]}}}",
      slices + "{\"file\":\"" + longest + "\"}]}}}",
      slices + "{\"digests\":\"" + std::string(bytes / 16 * 16, '0') + "\"}]}}}",
      Repeated(tensors + "\"w\":{\"shape\":[1", bytes, same(",1")) + "]}}}",
      // One run that stands for many segments.
      slices + slice + "0,1,2,4500000]},{\"file\":\"f\",\"entry\":\"v\",\"digests\":\"\"," +
          "\"runs\":[1,1,2,4500000]}]}}}",
      // Configurations.
      "{\"model_type\":\"" + longest + "\"}",
      Repeated("{\"architectures\":[\"a\"", bytes,
               [](size_t i) { return ",\"architecture_of_" + Name(i) + "\""; }) +
          "]}",
      Repeated("{\"rope_parameters\":{", bytes, entry("\":1")) + "}}",
      Repeated("{\"a\":[{}", bytes, same(",{\"a\":1}")) + "]}"};
  const size_t count = texts.size();
  for (size_t i = 0; i < count; ++i) {
    if (texts[i].starts_with(manifest)) texts.push_back(Signed(texts[i]));
  }
  return texts;
}

TEST(ParseMemoryTest, AtMostFourTimesTheTextAndOneMiB) {
#if !APOGEE_OWN_NEW
  GTEST_SKIP() << "sanitizers count memory of their own";
#endif
  const std::vector<std::pair<const char*, std::function<void(const std::string&)>>> parsers = {
      {"header",
       [](const std::string& text) {
         checkpoint::ParseSafetensorsHeader(text, {.path = "f", .data_bytes = 0})
             .status()
             .IgnoreError();
       }},
      {"index",
       [](const std::string& text) { checkpoint::ParseHfIndex(text, "f").status().IgnoreError(); }},
      {"manifest",
       [](const std::string& text) {
         checkpoint::ParseManifest(text, "f").status().IgnoreError();
       }},
      {"config", [](const std::string& text) {
         nn::ParseDecoderHfConfig(text, "f", [](const std::string&) {}).status().IgnoreError();
       }}};
  // Tables that are made once do not count.
  for (const auto& [name, parse] : parsers) parse("{\"a\":{\"dtype\":\"F32\"}}");
  for (const size_t bytes : {size_t{3} << 10, size_t{40} << 10, size_t{300} << 10,
                             (size_t{1} << 20) + 1, (size_t{2} << 20) - 100}) {
    for (const std::string& text : HostileTexts(bytes)) {
      for (const auto& [name, parse] : parsers) {
        const size_t before = live_bytes;
        peak_bytes = before;
        parse(text);
        const size_t peak = peak_bytes - before;
        EXPECT_EQ(live_bytes, before) << name;
        EXPECT_LE(peak, 4 * text.size() + (size_t{1} << 20))
            << name << " of " << text.size() << " bytes: " << text.substr(0, 120);
      }
    }
  }
  EXPECT_GT(peak_bytes, 0u);
}

}  // namespace parse_memory_test
}  // namespace apogee
