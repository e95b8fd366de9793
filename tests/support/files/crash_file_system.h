// SPDX-License-Identifier: Apache-2.0

// CrashFileSystem: files in memory, with a log of all operations. From the log it makes every state
// that a power failure could leave on disk.
//
//   auto files = std::make_shared<CrashFileSystem>();
//   ... save to it ...
//   files->ForEachCrash(from, files->num_operations(),
//                       [](const auto& left, bool all_done) { ... check the files in `left` ... });
//
// Everything that has not been synced may be lost: bytes until their file is synced; names
// (creations, renames, removals) until their folder is synced. For every prefix of the log with
// `from` to `to` operations, ForEachCrash makes the state with all operations, without the pending
// ones, without each single pending one, and without each pair of pending ones.
#ifndef APOGEE_TESTS_SUPPORT_FILES_CRASH_FILE_SYSTEM_H_
#define APOGEE_TESTS_SUPPORT_FILES_CRASH_FILE_SYSTEM_H_

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "apogee/checkpoint/files/file_system.h"

namespace apogee::testing {

class CrashFileSystem : public checkpoint::FileSystem {
 public:
  enum class Kind { kCreate, kAppend, kSync, kMakeDir, kRename, kSyncDir, kRemove };

  CrashFileSystem() { state_.nodes[kRoot].is_dir = true; }

  // Makes the `index`-th operation from now on fail with `status`, without effect.
  void FailAt(size_t index, absl::Status status) {
    fail_at_ = log_.size() + index;
    failure_ = std::move(status);
  }
  // Crashes ignore the operation of that index in the log, a sync.
  void ForgetSync(size_t index) { forgotten_ = index; }
  size_t num_operations() const { return log_.size(); }
  std::vector<size_t> SyncsSince(size_t from) const {
    std::vector<size_t> syncs;
    for (size_t i = from; i < log_.size(); ++i) {
      if (log_[i].kind == Kind::kSync || log_[i].kind == Kind::kSyncDir) syncs.push_back(i);
    }
    return syncs;
  }

  using OnCrash =
      std::function<void(const std::shared_ptr<checkpoint::FileSystem>& left, bool all_done)>;
  void ForEachCrash(size_t from, size_t to, const OnCrash& fn) const {
    for (size_t end = from; end <= to; ++end) {
      const std::vector<size_t> pending = Pending(end);
      const bool done = end == to;
      fn(Left(end, {}), done);
      fn(Left(end, {pending.begin(), pending.end()}), done);
      for (size_t i = 0; i < pending.size(); ++i) {
        fn(Left(end, {pending[i]}), done);
        for (size_t j = 0; j < i; ++j) fn(Left(end, {pending[i], pending[j]}), done);
      }
    }
  }

  absl::StatusOr<std::unique_ptr<checkpoint::WritableFile>> Create(
      const std::string& path) override {
    const std::lock_guard lock(mutex_);
    APOGEE_ASSIGN_OR_RETURN(const Place place, Find(path));
    if (place.node != 0) return absl::AlreadyExistsError(path + ": is there already");
    const size_t node = next_node_++;
    APOGEE_RETURN_IF_ERROR(Do({Kind::kCreate, place.dir, place.name, node}));
    return std::make_unique<Writer>(*this, node);
  }
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> Open(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    APOGEE_ASSIGN_OR_RETURN(const Place place, Find(path));
    if (place.node == 0 || state_.nodes[place.node].is_dir) return NotFound(path, ": is not there");
    return std::make_unique<Reader>(path, state_.nodes[place.node].data);
  }
  // This file system has no links.
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> OpenThroughLinks(
      const std::string& path) override {
    return Open(path);
  }
  absl::Status MakeDir(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    APOGEE_ASSIGN_OR_RETURN(const Place place, Find(path));
    if (place.node != 0) return absl::AlreadyExistsError(path + ": is there already");
    return Do({Kind::kMakeDir, place.dir, place.name, next_node_++});
  }
  absl::StatusOr<std::unique_ptr<checkpoint::Folder>> OpenFolder(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    APOGEE_ASSIGN_OR_RETURN(const Place place, Find(path));
    if (place.node == 0 || !state_.nodes[place.node].is_dir)
      return NotFound(path, ": is not there");
    return std::make_unique<Dir>(*this, path, place.node);
  }
  absl::StatusOr<checkpoint::PathKind> KindOf(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const absl::StatusOr<Place> place = Find(path);
    if (!place.ok() || place->node == 0) return checkpoint::PathKind::kNothing;
    return state_.nodes[place->node].is_dir ? checkpoint::PathKind::kFolder
                                            : checkpoint::PathKind::kFile;
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string&) override { return int64_t{1} << 40; }

 private:
  static constexpr size_t kRoot = 1;
  struct Operation {
    Kind kind;
    size_t dir = 0;
    std::string name = {};
    size_t node = 0;
    size_t to_dir = 0;
    std::string to_name = {};
    std::string bytes = {};
  };
  struct Node {
    bool is_dir = false;
    std::map<std::string, size_t> entries = {};
    std::string data = {};
  };
  struct State {
    std::map<size_t, Node> nodes;
  };
  struct Place {
    size_t dir = 0;
    std::string name;
    size_t node = 0;  // 0: nothing there
  };

  class Writer : public checkpoint::WritableFile {
   public:
    Writer(CrashFileSystem& files, size_t node) : files_(files), node_(node) {}
    absl::Status Append(std::span<const std::byte> bytes) override {
      const std::lock_guard lock(files_.mutex_);
      std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return files_.Do({.kind = Kind::kAppend, .node = node_, .bytes = std::move(text)});
    }
    absl::Status Sync() override {
      const std::lock_guard lock(files_.mutex_);
      return files_.Do({.kind = Kind::kSync, .node = node_});
    }
    absl::Status Close() override { return absl::OkStatus(); }

   private:
    CrashFileSystem& files_;
    size_t node_;
  };

  class Reader : public checkpoint::ReadableFile {
   public:
    Reader(std::string path, std::string data) : path_(std::move(path)), data_(std::move(data)) {}
    const std::string& path() const override { return path_; }
    int64_t size() const override { return static_cast<int64_t>(data_.size()); }
    absl::Status Read(int64_t offset, std::span<std::byte> to) const override {
      if (offset + static_cast<int64_t>(to.size()) > size()) {
        return DataLoss(path_, ": byte ", size(), ": the file ends there");
      }
      std::memcpy(to.data(), data_.data() + offset, to.size());
      return absl::OkStatus();
    }

   private:
    std::string path_, data_;
  };

  class Dir : public checkpoint::Folder {
   public:
    Dir(CrashFileSystem& files, std::string path, size_t node)
        : files_(files), path_(std::move(path)), node_(node) {}
    absl::StatusOr<std::vector<std::string>> List() override {
      const std::lock_guard lock(files_.mutex_);
      std::vector<std::string> names;
      for (const auto& [name, node] : Entries()) names.push_back(name);
      return names;
    }
    absl::StatusOr<std::unique_ptr<checkpoint::Folder>> OpenFolder(
        const std::string& name) override {
      const std::lock_guard lock(files_.mutex_);
      const size_t node = Find(name);
      if (node == 0) return Missing(name);
      if (!files_.state_.nodes[node].is_dir) {
        return absl::FailedPreconditionError(At(name) + ": is not a folder");
      }
      return std::make_unique<Dir>(files_, At(name), node);
    }
    absl::Status Rename(const std::string& from, const std::string& to) override {
      const std::lock_guard lock(files_.mutex_);
      const size_t node = Find(from);
      if (node == 0) return Missing(from);
      if (Find(to) != 0) return absl::AlreadyExistsError(At(to) + ": is there already");
      return files_.Do({Kind::kRename, node_, from, node, node_, to});
    }
    absl::Status RemoveFile(const std::string& name) override { return Remove(name, false); }
    absl::Status RemoveDir(const std::string& name) override { return Remove(name, true); }
    absl::Status Sync() override {
      const std::lock_guard lock(files_.mutex_);
      return files_.Do({Kind::kSyncDir, 0, "", node_});
    }

   private:
    std::map<std::string, size_t>& Entries() { return files_.state_.nodes[node_].entries; }
    size_t Find(const std::string& name) {
      const auto found = Entries().find(name);
      return found == Entries().end() ? 0 : found->second;
    }
    std::string At(const std::string& name) const { return checkpoint::JoinPath(path_, name); }
    absl::Status Missing(const std::string& name) const {
      return NotFound(At(name), ": is not there");
    }
    absl::Status Remove(const std::string& name, bool is_dir) {
      const std::lock_guard lock(files_.mutex_);
      const size_t node = Find(name);
      if (node == 0) return Missing(name);
      if (files_.state_.nodes[node].is_dir != is_dir) {
        return DataLoss(At(name), is_dir ? ": is not a folder" : ": is a folder");
      }
      if (!files_.state_.nodes[node].entries.empty()) {
        return absl::AlreadyExistsError(At(name) + ": is not empty");
      }
      return files_.Do({Kind::kRemove, node_, name, node});
    }

    CrashFileSystem& files_;
    std::string path_;
    size_t node_;
  };

  // Finds "a/b/c", from the root.
  absl::StatusOr<Place> Find(const std::string& path) {
    Place place{0, "", kRoot};
    size_t at = 0;
    while (at < path.size()) {
      size_t end = path.find('/', at);
      if (end == std::string::npos) end = path.size();
      const std::string name = path.substr(at, end - at);
      at = end + 1;
      if (name.empty() || name == ".") continue;
      if (place.node == 0) return NotFound(path, ": is not there");
      const Node& dir = state_.nodes[place.node];
      const auto found = dir.entries.find(name);
      place = {place.node, name, found == dir.entries.end() ? 0 : found->second};
    }
    return place;
  }

  absl::Status Do(Operation operation) {
    if (log_.size() == fail_at_) {
      fail_at_ = static_cast<size_t>(-1);
      return failure_;
    }
    Apply(operation, state_, false);
    log_.push_back(std::move(operation));
    return absl::OkStatus();
  }

  // An operation on a missing entry has no effect. `lost`: the bytes were not written and read as
  // zeros.
  static void Apply(const Operation& operation, State& state, bool lost) {
    switch (operation.kind) {
      case Kind::kCreate:
      case Kind::kMakeDir:
        state.nodes[operation.node].is_dir = operation.kind == Kind::kMakeDir;
        state.nodes[operation.dir].entries[operation.name] = operation.node;
        break;
      case Kind::kAppend:
        state.nodes[operation.node].data +=
            lost ? std::string(operation.bytes.size(), '\0') : operation.bytes;
        break;
      case Kind::kRename: {
        auto& from = state.nodes[operation.dir].entries;
        if (from.erase(operation.name) == 0) break;
        state.nodes[operation.to_dir].entries[operation.to_name] = operation.node;
        break;
      }
      case Kind::kRemove:
        state.nodes[operation.dir].entries.erase(operation.name);
        break;
      case Kind::kSync:
      case Kind::kSyncDir:
        break;
    }
  }

  bool SyncedBy(const Operation& sync, const Operation& operation) const {
    if (operation.kind == Kind::kAppend) {
      return sync.kind == Kind::kSync && sync.node == operation.node;
    }
    return sync.kind == Kind::kSyncDir &&
           (sync.node == operation.dir || sync.node == operation.to_dir);
  }

  std::vector<size_t> Pending(size_t end) const {
    std::vector<size_t> pending;
    for (size_t i = 0; i < end; ++i) {
      if (log_[i].kind == Kind::kSync || log_[i].kind == Kind::kSyncDir) continue;
      bool durable = false;
      for (size_t j = i + 1; j < end && !durable; ++j) {
        durable = j != forgotten_ && SyncedBy(log_[j], log_[i]);
      }
      if (!durable) pending.push_back(i);
    }
    return pending;
  }

  std::shared_ptr<checkpoint::FileSystem> Left(size_t end, const std::set<size_t>& lost) const {
    auto left = std::make_shared<CrashFileSystem>();
    for (size_t i = 0; i < end; ++i) {
      if (log_[i].kind == Kind::kAppend || !lost.contains(i)) {
        Apply(log_[i], left->state_, lost.contains(i));
      }
    }
    return left;
  }

  mutable std::mutex mutex_;
  State state_;
  std::vector<Operation> log_;
  size_t next_node_ = kRoot + 1;
  size_t fail_at_ = static_cast<size_t>(-1);
  absl::Status failure_;
  size_t forgotten_ = static_cast<size_t>(-1);
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_CRASH_FILE_SYSTEM_H_
