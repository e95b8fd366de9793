// SPDX-License-Identifier: Apache-2.0

// apogee data: what tokenize writes against a naive program of the test's own, whatever the number
// of threads and however often it was killed; conversions; bad input.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "apogee/data/token_files/token_file.h"
#include "apogee/data/tokenizer/load_tokenizer.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace data_command_test {

namespace fs = std::filesystem;
using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::ReadFile;
using data::TokenFormat;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DataCommandTest : public ::testing::Test {
 protected:
  CommandResult Data(const std::string& arguments) { return Command("data " + arguments); }
  CommandResult Tokenize(const std::string& output, const std::string& arguments) {
    return Data("tokenize --tokenizer byte --output " + (dir_ / output) + " " + arguments);
  }
  static std::vector<int32_t> Ids(const std::string& path) {
    const auto source = data::OpenTokenFile(path);
    EXPECT_TRUE(source.ok()) << source.status();
    std::vector<int32_t> ids(static_cast<size_t>((*source)->num_tokens()));
    (*source)->Read(0, ids);
    return ids;
  }
  static std::vector<int64_t> Begins(const std::string& path) {
    const auto source = data::OpenTokenFile(path);
    return (*source)->DocumentBegins(0, (*source)->num_tokens());
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
  // Lines of very different lengths, some MiB.
  std::string WriteLines(int64_t bytes) {
    std::string text;
    for (int64_t i = 0; static_cast<int64_t>(text.size()) < bytes; ++i) {
      text += std::string(static_cast<size_t>(1 + i * i % 3001), static_cast<char>('a' + i % 26));
      text += '\n';
    }
    return dir_.Write("lines.txt", text);
  }

  apogee::testing::TempDir dir_;
};

TEST_F(DataCommandTest, TextsLinesAndJson) {
  const std::string text = dir_.Write("a.txt", "ab\ncd\n");
  const std::string json = dir_.Write("b.jsonl", R"({"id": {"text": "x"}, "text": "one"})"
                                                 "\n"
                                                 R"({"text": "\u00e9"})");
  CommandResult result = Tokenize("m.bin", "--format megatron " + text + " " + json);
  ASSERT_EQ(result.code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("m.bin: megatron, 11 tokens, 3 documents\n"));
  EXPECT_THAT(Ids(dir_ / "m.bin"),
              ElementsAre('a', 'b', '\n', 'c', 'd', '\n', 'o', 'n', 'e', 0xC3, 0xA9));
  EXPECT_THAT(Begins(dir_ / "m.bin"), ElementsAre(0, 6, 9));
  // A folder is its files in the order of their names.
  dir_.Write("f/b.txt", "2");
  dir_.Write("f/a/z.txt", "1");
  ASSERT_EQ(Tokenize("f.bin", "--format megatron " + (dir_ / "f")).code, 0);
  EXPECT_THAT(Ids(dir_ / "f.bin"), ElementsAre('1', '2'));
  ASSERT_EQ(Tokenize("l.bin", "--format megatron --split-lines " + text).code, 0);
  EXPECT_THAT(Begins(dir_ / "l.bin"), ElementsAre(0, 2));
  // llm.c's files have the end-of-text id before each document, raw ones behind it.
  ASSERT_EQ(Tokenize("c.bin", "--split-lines --end-of-text z " + text).code, 0);
  EXPECT_THAT(Ids(dir_ / "c.bin"), ElementsAre('z', 'a', 'b', 'z', 'c', 'd'));
  ASSERT_EQ(Tokenize("r.bin", "--format raw_u16 --split-lines --end-of-text z " + text).code, 0);
  result = Data("inspect --format raw_u16 --end-of-text 122 --tokenizer byte " + (dir_ / "r.bin"));
  EXPECT_THAT(result.out, HasSubstr("documents    2\nlargest id   122\n"));
  EXPECT_THAT(result.out, HasSubstr("as text      abzcdz\n"));
}

TEST_F(DataCommandTest, EveryNumberOfThreadsWritesTheSame) {
  const std::string lines = WriteLines(3 << 20);
  // Each byte of the text, or of its lines, as two; and behind the whole text an end.
  std::string whole, without_ends;
  for (const char c : ReadFile(lines)) {
    whole += {c, '\0'};
    if (c != '\n') without_ends += {c, '\0'};
  }
  whole += {'Z', '\0'};
  for (const std::string threads : {"1", "2", "3"}) {
    const std::string flags = "--format raw_u16 --threads " + threads + " " + lines;
    ASSERT_EQ(Tokenize("t" + threads, "--end-of-text Z " + flags).code, 0);
    ASSERT_EQ(Tokenize("l" + threads, "--split-lines --end-of-text none " + flags).code, 0);
    EXPECT_TRUE(ReadFile(dir_ / ("t" + threads)) == whole) << threads;
    EXPECT_TRUE(ReadFile(dir_ / ("l" + threads)) == without_ends) << threads;
  }
}

// Pieces of a text have the ids of the whole, with every recorded tokenizer that this build has.
TEST_F(DataCommandTest, PiecesHaveTheIdsOfTheWhole) {
  std::string text;
  for (int i = 0; text.size() < (size_t{5} << 17); ++i) {
    text += std::string(static_cast<size_t>(i % 4), ' ') + "word" + std::to_string(i % 1009 * 31) +
            (i % 3 == 0 ? "'s" : "\u00e9t\u00e9") +
            (i % 7 == 0    ? "\n"
             : i % 11 == 0 ? " \n\n"
                           : "");
  }
  const std::string path = dir_.Write("a.txt", text);
  for (const std::string name : {"gpt2", "llama2", "llama3", "qwen2"}) {
    const std::string file = std::string(APOGEE_GOLDEN) + "/tokenizers/" + name + "/tokenizer.json";
    const auto tokenizer = data::LoadTokenizer(file);
    if (!tokenizer.ok()) continue;
    std::vector<int32_t> expected;
    (*tokenizer)->Encode(text, expected);
    expected.push_back((*tokenizer)->end_of_text().value_or(0));
    const std::string output = dir_ / (name + ".idx");
    const CommandResult result = Data("tokenize --threads 2 --format megatron --tokenizer " + file +
                                      " --output " + output + " " + path);
    ASSERT_EQ(result.code, 0) << result.out;
    if (!(*tokenizer)->end_of_text().has_value()) expected.pop_back();
    EXPECT_EQ(Ids(output), expected) << name;
  }
}

// Starts the command and kills it when it has written a journal. False: it was faster.
bool StartAndKill(const std::string& command, const std::string& journal) {
  const auto written = [&] {
    std::error_code error;
    return fs::last_write_time(journal, error);  // the smallest time if there is none
  };
  const fs::file_time_type before = written();
  const pid_t child = fork();
  if (child == 0) {
    const std::string line = "exec " + command + " >/dev/null 2>&1";
    execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  while (written() <= before) {
    if (waitpid(child, &status, WNOHANG) == child) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

TEST_F(DataCommandTest, AKilledRunContinues) {
  const std::string lines = WriteLines(4 << 20);
  for (const std::string name : {"text", "lines"}) {
    const std::string flags = name == "text" ? " --format raw_u16 --end-of-text none "
                                             : " --format megatron --split-lines --threads 2 ";
    ASSERT_EQ(Tokenize(name + "_whole.bin", flags + lines).code, 0);
    const std::string cut = dir_ / (name + "_cut.bin");
    const std::string command = std::string(APOGEE_COMMAND) + " data tokenize --tokenizer byte" +
                                flags + "--journal-mib 1 --output " + cut + " " + lines;
    int kills = 0;
    while (StartAndKill(command, dir_ / (".tmp-" + name + "_cut.bin.journal"))) ++kills;
    EXPECT_GE(kills, 1);
    EXPECT_TRUE(ReadFile(cut) == ReadFile(dir_ / (name + "_whole.bin"))) << name;
    EXPECT_TRUE(ReadFile(dir_ / (name + "_cut.idx")) == ReadFile(dir_ / (name + "_whole.idx")));
  }
}

TEST_F(DataCommandTest, AnotherRunDoesNotContinue) {
  const std::string lines = WriteLines(4 << 20);
  const std::string flags = "--format raw_u16 --end-of-text none ";
  const std::string journal = dir_ / ".tmp-a.bin.journal";
  ASSERT_TRUE(StartAndKill(std::string(APOGEE_COMMAND) +
                               " data tokenize --tokenizer byte --journal-mib 1 --output " +
                               (dir_ / "a.bin") + " " + flags + lines,
                           journal));
  const CommandResult other = Tokenize("a.bin", "--format raw_u16 --end-of-text z " + lines);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.out, HasSubstr("a run with other arguments, inputs or tokenizer was killed"));
  dir_.Write(".tmp-a.bin.journal", "{\"run\": 5}");
  EXPECT_THAT(Tokenize("a.bin", flags + lines).out,
              HasSubstr("journal: is damaged; remove it to start anew"));
  fs::remove(journal);
  EXPECT_EQ(Tokenize("a.bin", flags + lines).code, 0);
  for (const std::string& name : Names()) EXPECT_FALSE(name.starts_with(".tmp-")) << name;
}

TEST_F(DataCommandTest, BadInputLeavesNothing) {
  const auto fails = [&](const std::string& arguments, const std::string& says) {
    const CommandResult result = Tokenize("out.bin", "--format megatron " + arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.out, HasSubstr(says));
    for (const std::string& name : Names()) EXPECT_THAT(name, ::testing::Not(HasSubstr("out")));
  };
  const std::string good = "{\"text\": \"x\"}\n";
  fails(dir_.Write("a.jsonl", good + "{\"text\": \n"), "a.jsonl: line 2: not valid JSON");
  fails(dir_.Write("b.jsonl", good + good + "{\"txt\": \"x\"}"), "line 3: has no field \"text\"");
  fails(dir_.Write("c.jsonl", "{\"text\": 5}"), "line 1: the field \"text\" is a number, not a");
  fails(dir_.Write("d.jsonl", "[1]"), "line 1: is a list, not an object");
  fails(dir_.Write("e.jsonl", "{\"text\": \"a\", \"text\": \"b\"}"), "the field \"text\" twice");
  fails(dir_.Write("f.jsonl", good + "{\"text\": \"\"}"), "f.jsonl: line 2: has no text; remove");
  fails(dir_.Write("g.txt", ""), "g.txt: has no text; remove it, or leave out such documents");
  fails("--skip-empty " + (dir_ / "g.txt"), "the inputs hold no document with text");
  fails(dir_ / "no.txt", "no.txt does not exist; give a text file or a directory");
  fs::create_directory(dir_ / "bare");
  fails(dir_ / "bare", "the inputs hold no document with text");
  fails("--max-document-mib 1 " + dir_.Write("h.jsonl", good + std::string(3 << 20, ' ')),
        "h.jsonl: line 2 is longer than 1.0 MiB; divide it, or raise --max-document-mib");
  fails("--end-of-text two " + (dir_ / "a.jsonl"), "has no token \"two\"");
  const CommandResult skipped =
      Tokenize("ok.bin", "--format megatron --skip-empty " + (dir_ / "f.jsonl"));
  EXPECT_THAT(skipped.out, HasSubstr("1 documents, 1 without text left out"));
  EXPECT_THAT(Tokenize("ok.bin", "--format megatron " + (dir_ / "f.jsonl")).out,
              HasSubstr("nothing is overwritten"));
  EXPECT_THAT(Tokenize("x.bin", dir_ / "a.jsonl").out, HasSubstr("has no token that ends a"));
}

TEST_F(DataCommandTest, Conversions) {
  const std::string text = dir_.Write("a.txt", "ab\ncd\nef\n");
  ASSERT_EQ(Tokenize("c.bin", "--split-lines --end-of-text z " + text).code, 0);
  const std::string end = " --end-of-text 122 ";
  ASSERT_EQ(
      Data("convert --to megatron --output " + (dir_ / "m.idx") + end + (dir_ / "c.bin")).code, 0);
  EXPECT_EQ(Ids(dir_ / "m.idx"), Ids(dir_ / "c.bin"));
  EXPECT_THAT(Begins(dir_ / "m.idx"), ElementsAre(0, 3, 6));
  ASSERT_EQ(Data("convert --to raw_u32 --output " + (dir_ / "r.bin") + " " + (dir_ / "m.idx")).code,
            0);
  ASSERT_EQ(Data("convert --to llmc --format raw_u32 --vocab-size 256 --output " +
                 (dir_ / "d.bin") + " " + (dir_ / "r.bin"))
                .code,
            0);
  EXPECT_EQ(ReadFile(dir_ / "c.bin"), ReadFile(dir_ / "d.bin"));
  dir_.Write("w.bin", std::string("\x01\x00\x00\x00\x00\x00\x01\x00", 8));
  const CommandResult wide = Data("convert --format raw_u32 --to raw_u16 --output " +
                                  (dir_ / "n.bin") + " " + (dir_ / "w.bin"));
  EXPECT_EQ(wide.code, 1);
  EXPECT_THAT(wide.out, HasSubstr("w.bin: token 1 is 65536, but u16 holds [0, 65535]"));
  EXPECT_FALSE(fs::exists(dir_ / "n.bin") || fs::exists(dir_ / ".tmp-n.bin"));
}

TEST_F(DataCommandTest, Verification) {
  ASSERT_EQ(Tokenize("m.bin", "--format megatron " + dir_.Write("a.txt", "abc")).code, 0);
  const std::string path = dir_ / "m.idx";
  CommandResult result = Data("verify --tokenizer byte " + path);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("sound: 3 tokens, 1 documents, largest id 99"));
  result = Data("verify --vocab-size 99 " + path);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("m.bin: token 2 is 99; ids must be in [0, 99)"));
  fs::resize_file(path, 50);
  EXPECT_EQ(Data("verify " + path).code, 1);
  EXPECT_EQ(Data("verify " + (dir_ / "no.idx")).code, 2);
  EXPECT_EQ(Data("verify --format lmc " + path).code, 2);
  EXPECT_EQ(Data("").code, 2);
}

}  // namespace data_command_test
}  // namespace apogee::tools
