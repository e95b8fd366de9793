// SPDX-License-Identifier: Apache-2.0

// TempFolder: a new folder below $TMPDIR (else /tmp), removed with its contents at the end.
//
//   const TempFolder folder;
//   if (!folder.path().empty()) Write(folder.path() + "/a");
#ifndef APOGEE_CORE_PROCESS_TEMP_FOLDER_H_
#define APOGEE_CORE_PROCESS_TEMP_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace apogee {

class TempFolder {
 public:
  TempFolder() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base == nullptr || *base == '\0' ? "/tmp" : base) + "/apogee.XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~TempFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  // Empty if it could not be made.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_TEMP_FOLDER_H_
