// SPDX-License-Identifier: Apache-2.0

#include "races.h"

#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "code_place.h"

// The linker's name for the program's first address.
extern "C" const char __executable_start;

namespace cuda_emulation {
namespace {

// The calling thread's copies of the program's thread_local variables; __shared__ arrays are among
// them.
Range ThreadLocals() {
  Range range;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type != PT_TLS || info->dlpi_tls_data == nullptr) continue;
          *static_cast<Range*>(result) = {reinterpret_cast<uintptr_t>(info->dlpi_tls_data),
                                          header.p_memsz};
        }
        return 1;  // the first is the program
      },
      &range);
  return range;
}

// Code addresses as 32 bits.
uint32_t CodeOf(const void* code) {
  return static_cast<uint32_t>(static_cast<const char*>(code) - &__executable_start);
}
// `code` is where a call returns to: the byte before belongs to the call.
CodePlace PlaceOfCall(uint32_t code) { return PlaceOf(&__executable_start + code - 1); }

const char* Verb(Access access) {
  switch (access) {
    case Access::kRead:
      return "reads";
    case Access::kWrite:
      return "writes";
    default:
      return "changes by an atomic operation";
  }
}

std::string Triple(uint32_t index, const dim3& sizes) {
  return "(" + std::to_string(index % sizes.x) + ", " + std::to_string(index / sizes.x % sizes.y) +
         ", " + std::to_string(index / sizes.x / sizes.y) + ")";
}

}  // namespace

Races* Races::OfThisThread() {
  static const bool on = [] {
    const char* set = std::getenv("APOGEE_EMULATED_GPU_RACES");
    const bool wanted = set != nullptr && std::string_view(set) == "1";
#ifdef APOGEE_EMULATION_FINDS_NO_RACES
    if (wanted) {  // kernels tell nothing, or __shared__ variables are in another library
      std::fprintf(stderr,
                   "cuda emulation: a build without APOGEE_EMULATED_RACES, or with "
                   "BUILD_SHARED_LIBS, finds no races\n");
      std::abort();
    }
#endif
    return wanted;
  }();
  thread_local std::unique_ptr<Races> races = on ? std::make_unique<Races>() : nullptr;
  return races.get();
}

void Races::BeginLaunch(const void* kernel, const dim3& blocks, const dim3& threads) {
  kernel_ = kernel;
  blocks_ = blocks;
  threads_ = threads;
  static_shared_ = ThreadLocals();
  shadow_.Clear();
}

void Races::BeginBlock(uint32_t block, size_t threads, const Range& dynamic_shared) {
  dynamic_shared_ = dynamic_shared;
  order_.Begin(block, threads);
}

void Races::Note(Access access, const void* address, size_t bytes, const void* code) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (stack_.Contains(begin)) return;
  now_.code = CodeOf(code);
  shadow_.ForEachCell(begin, bytes, [&](Cell& cell, uintptr_t at) { NoteCell(access, cell, at); });
}

bool Races::Before(const Stamp& earlier, uintptr_t address) const {
  // The shared memory of another block was other memory.
  if (earlier.block != now_.block) return IsShared(address);
  return order_.Before(earlier, now_);
}

void Races::NoteCell(Access access, Cell& cell, uintptr_t address) {
  if (access == Access::kRead && cell.reads.latest().SameMoment(now_) && !cell.reads.empty()) {
    return;
  }
  const auto before = [&](const Stamp& earlier) { return Before(earlier, address); };
  const auto check = [&](const Accessors& accessors, const char* did) {
    if (const Stamp* other = accessors.Find(before)) Report(access, did, *other, address);
  };
  if (!cell.write.empty() && !before(cell.write))
    Report(access, "has written", cell.write, address);
  if (access != Access::kRead) check(cell.reads, "has read");
  if (access != Access::kAtomic && cell.atomics != 0) {
    check(shadow_.AtomicsOf(cell), "has changed by an atomic operation");
  }
  switch (access) {
    case Access::kRead:
      if (cell.write.block != now_.block || cell.write.empty()) {
        if (IsShared(address) && cell.atomics == 0) ReportUnwritten();
      }
      cell.reads.Add(now_);
      break;
    case Access::kWrite:
      cell.write = now_;
      cell.reads.Clear();
      cell.atomics = 0;
      break;
    case Access::kAtomic:
      shadow_.AtomicsOf(cell).Add(now_);
      break;
  }
}

void Races::Report(Access access, const char* other_did, const Stamp& other,
                   uintptr_t address) const {
  const CodePlace place = PlaceOfCall(now_.code), other_place = PlaceOfCall(other.code);
  std::fprintf(stderr,
               "cuda emulation: race in %s: thread %s of block %s %s %s memory that thread %s of "
               "block %s %s, and nothing orders the two\n  %s: %s\n  %s: %s\n",
               PlaceOf(kernel_).function.c_str(), Triple(now_.thread, threads_).c_str(),
               Triple(now_.block, blocks_).c_str(), Verb(access),
               IsShared(address) ? "shared" : "global", Triple(other.thread, threads_).c_str(),
               Triple(other.block, blocks_).c_str(), other_did, Verb(access), place.line.c_str(),
               other_did, other_place.line.c_str());
  std::abort();
}

void Races::ReportUnwritten() const {
  std::fprintf(stderr,
               "cuda emulation: thread %s of block %s of %s reads shared memory that its block has "
               "not written\n  reads: %s\n",
               Triple(now_.thread, threads_).c_str(), Triple(now_.block, blocks_).c_str(),
               PlaceOf(kernel_).function.c_str(), PlaceOfCall(now_.code).line.c_str());
  std::abort();
}

}  // namespace cuda_emulation
