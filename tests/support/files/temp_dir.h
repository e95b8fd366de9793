// SPDX-License-Identifier: Apache-2.0

// A temporary folder for one test; the destructor removes it with all its contents.
#ifndef APOGEE_TESTS_SUPPORT_FILES_TEMP_DIR_H_
#define APOGEE_TESTS_SUPPORT_FILES_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace apogee::testing {

class TempDir {
 public:
  TempDir() : path_((std::filesystem::temp_directory_path() / "apogee_XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make " + path_);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Returns the file's path.
  std::string Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = *this / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }

 private:
  std::string path_;
};

// The contents of a file; "" if it is missing.
inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_TEMP_DIR_H_
