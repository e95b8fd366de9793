// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/new/new_project.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "apogee/checkpoint/files/new_folder.h"
#include "apogee/core/status.h"
#include "apogee_new_template.h"

namespace apogee::tools {
namespace {

constexpr std::string_view kTemplateName = "my_app";

absl::Status CheckName(const std::string& name) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto fits = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; };
  const bool is_word = !name.empty() && is_letter(name[0]) && std::ranges::all_of(name, fits);
  if (!is_word || name.ends_with('_') || name.find("__") != std::string::npos) {
    return InvalidArgument("\"", name,
                           "\" cannot name a program: begin with a letter, and use a to z, 0 to 9 "
                           "and single _");
  }
  // Targets of CMake, and names of the library and of the template's test.
  constexpr std::array kTaken = {"all",  "apogee",  "clean",   "exact_test",
                                 "help", "install", "package", "test"};
  if (std::ranges::find(kTaken, name) != kTaken.end()) {
    return InvalidArgument("\"", name,
                           "\" is the name of something else in the project's CMake files; take "
                           "another one, for example my_",
                           name);
  }
  return absl::OkStatus();
}

// `text` with the name, in lower and upper case, in place of the template's.
std::string Renamed(std::string text, const std::string& name) {
  const auto upper = [](std::string word) {
    for (char& c : word) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return word;
  };
  const std::string old(kTemplateName);
  for (const auto& [from, to] : {std::pair(old, name), std::pair(upper(old), upper(name))}) {
    for (size_t at = text.find(from); at != std::string::npos;
         at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

}  // namespace

absl::Status NewProject(checkpoint::FileSystem& files, const std::string& folder) {
  std::string path = folder;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::string name = path.substr(path.rfind('/') + 1);
  APOGEE_RETURN_IF_ERROR(CheckName(name));
  constexpr int64_t kEnoughBytes = 1 << 20;
  APOGEE_ASSIGN_OR_RETURN(checkpoint::NewFolder project,
                          checkpoint::NewFolder::Make(files, path, kEnoughBytes, nullptr));
  for (const TemplateFile& file : kTemplateFiles) {
    const absl::Status written = checkpoint::WriteTextFile(
        files, project.temporary() + "/" + file.name, Renamed(file.text, name));
    if (!written.ok()) {
      project.Discard();
      return written;
    }
  }
  const absl::Status published = project.Publish();
  if (!published.ok()) project.Discard();
  return published;
}

}  // namespace apogee::tools
