// SPDX-License-Identifier: Apache-2.0

// The memory of the races' detector: for each address its last write, and the reads since.
// Private to the emulation.
#ifndef APOGEE_TESTS_CUDA_EMULATION_SHADOW_H_
#define APOGEE_TESTS_CUDA_EMULATION_SHADOW_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "order.h"

namespace cuda_emulation {

// Some of the threads that accessed a cell in one way: threads run one after another, so the latest
// of a warp or of a block stands for those before it. After an exchange of a part of a warp it may
// not: a race with a lane outside of that part is then missed.
class Accessors {
 public:
  bool empty() const { return of_[0].empty(); }
  const Stamp& latest() const { return of_[0]; }
  void Clear() { of_ = {}; }
  void Add(const Stamp& stamp) {
    const Stamp last = std::exchange(of_[0], stamp);
    if (last.empty() || (last.block == stamp.block && last.thread == stamp.thread)) return;
    if (last.block != stamp.block) {
      of_ = {stamp, {}, {}, last};
      return;
    }
    of_[1] = last;
    if (last.warp() != stamp.warp()) of_[2] = last;
  }
  // One for which `before` is false; null if there is none.
  template <typename Before>
  const Stamp* Find(const Before& before) const {
    for (const Stamp& stamp : of_) {
      if (!stamp.empty() && !before(stamp)) return &stamp;
    }
    return nullptr;
  }

 private:
  // The latest; the latest of another thread, of another warp, of another block.
  std::array<Stamp, 4> of_;
};

struct Cell {
  Stamp write;
  Accessors reads;       // since the write
  uint32_t atomics = 0;  // since the write: an index for Shadow::AtomicsOf
};

// A launch's cells. A cell has 4 bytes, or fewer where accesses ended within a cell.
class Shadow {
 public:
  static constexpr uintptr_t kPageBytes = 1024;

  // Forgets everything.
  void Clear() {
    for (auto& [number, page] : pages_) free_.push_back(std::move(page));
    pages_.clear();
    recent_.fill({});
    atomics_.resize(1);
  }
  // Calls fn(cell, address) for each cell of [address, address + bytes).
  template <typename Fn>
  void ForEachCell(uintptr_t address, size_t bytes, const Fn& fn) {
    const uintptr_t end = address + bytes;
    while (address < end) {
      Page& page = PageOf(address);
      const uintptr_t offset = address % kPageBytes;
      const uintptr_t part = std::min(end - address, kPageBytes - offset);
      const int shift = std::min(2, std::countr_zero(offset | part));
      if (shift < page.shift) Split(page, shift);
      for (uintptr_t i = offset >> page.shift; i < (offset + part) >> page.shift; ++i) {
        fn(page.cells[i], address - offset + (i << page.shift));
      }
      address += part;
    }
  }
  Accessors& AtomicsOf(Cell& cell) {
    if (cell.atomics == 0) {
      cell.atomics = static_cast<uint32_t>(atomics_.size());
      atomics_.emplace_back();
    }
    return atomics_[cell.atomics];
  }

 private:
  struct Page {
    int shift = 2;
    std::vector<Cell> cells;
  };
  struct Recent {
    uintptr_t number = 0;
    Page* page = nullptr;
  };

  Page& PageOf(uintptr_t address) {
    const uintptr_t number = address / kPageBytes;
    Recent& recent = recent_[number % recent_.size()];
    if (recent.page == nullptr || recent.number != number) {
      std::unique_ptr<Page>& page = pages_[number];
      if (page == nullptr) page = Fresh();
      recent = {number, page.get()};
    }
    return *recent.page;
  }
  std::unique_ptr<Page> Fresh() {
    auto page = free_.empty() ? std::make_unique<Page>() : std::move(free_.back());
    if (!free_.empty()) free_.pop_back();
    page->shift = 2;
    page->cells.assign(kPageBytes >> 2, {});
    return page;
  }
  static void Split(Page& page, int shift) {
    std::vector<Cell> cells(kPageBytes >> shift);
    for (size_t i = 0; i < cells.size(); ++i) cells[i] = page.cells[i >> (page.shift - shift)];
    page.cells = std::move(cells);
    page.shift = shift;
  }

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::vector<std::unique_ptr<Page>> free_;
  std::array<Recent, 256> recent_ = {};
  std::vector<Accessors> atomics_ = std::vector<Accessors>(1);
};

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_SHADOW_H_
