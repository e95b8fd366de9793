// SPDX-License-Identifier: Apache-2.0

// Runs the blocks of a launch. Their threads are fibers of the calling thread.
#include "block.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "code_place.h"
#include "device.h"
#include "races.h"

namespace cuda_emulation {
namespace {

namespace ctx = boost::context;

constexpr size_t kStackBytes = 64 << 10;
constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// The stacks of a thread's fibers, reused block after block.
class StackPool {
 public:
  ctx::stack_context allocate() {
    if (free_.empty()) return last_ = stacks_.allocate();
    last_ = free_.back();
    free_.pop_back();
    return last_;
  }
  // The addresses of the stack that was allocated last.
  Range last() const { return {reinterpret_cast<uintptr_t>(last_.sp) - last_.size, last_.size}; }
  void deallocate(ctx::stack_context& stack) { free_.push_back(stack); }
  ~StackPool() {
    for (ctx::stack_context& stack : free_) stacks_.deallocate(stack);
  }

 private:
  ctx::fixedsize_stack stacks_{kStackBytes};
  std::vector<ctx::stack_context> free_;
  ctx::stack_context last_;
};

struct PoolRef {
  StackPool* pool;
  ctx::stack_context allocate() { return pool->allocate(); }
  void deallocate(ctx::stack_context& stack) { pool->deallocate(stack); }
};

enum class Wait { kNothing, kBlock, kWarp };

struct Thread {
  ctx::fiber fiber;  // continues the thread where it waits
  Range stack;
  Position position;
  Wait wait = Wait::kNothing;
  unsigned exchanges = 0;  // the number of exchanges that it has begun
  unsigned masks[2] = {};  // of the last one, at exchanges % 2, and of the one before
  bool started = false, ended = false;
};

// The lanes' bytes of one exchange and of the next one: a lane is at most one exchange ahead.
struct Warp {
  alignas(16) char lanes[2][kLanes * kLaneBytes];
  // For exchanges of the whole warp, which are by far the most: the exchange's number, and a mask
  // of the lanes that have reached it.
  unsigned whole[2] = {}, arrived[2] = {};
};

struct Block {
  const void* kernel;
  const std::function<void()>* body;
  Races* races;  // null if it is off
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<char> dynamic_shared;
  ctx::fiber scheduler;
  Thread* running = nullptr;
};

thread_local Block* current = nullptr;

void Yield() {
  Block& block = *current;
  block.scheduler = std::move(block.scheduler).resume();
}

[[noreturn]] void Stuck(const Block& block) {
  const uint3 at = block.threads[0].position.block;
  std::fprintf(stderr, "cuda emulation: block (%u, %u, %u) cannot go on:", at.x, at.y, at.z);
  for (size_t i = 0; i < block.threads.size(); ++i) {
    const Thread& thread = block.threads[i];
    std::fprintf(stderr, " %zu:%s", i,
                 thread.ended                  ? "returned"
                 : thread.wait == Wait::kBlock ? "barrier"
                                               : "warp");
    if (thread.wait == Wait::kWarp) {
      std::fprintf(stderr, "(%08x)", thread.masks[thread.exchanges % 2]);
    }
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

void RunThread(Block& block, Thread& thread, StackPool& pool) {
  block.running = &thread;
  if (!thread.started) {
    thread.started = true;
    thread.fiber =
        ctx::fiber(std::allocator_arg, PoolRef{&pool}, [&block, &thread](ctx::fiber&& from) {
          block.scheduler = std::move(from);
          (*block.body)();
          thread.ended = true;
          return std::move(block.scheduler);
        });
    thread.stack = pool.last();
  }
  if (block.races != nullptr) {
    block.races->Resume(static_cast<size_t>(&thread - block.threads.data()), thread.stack);
  }
  NoteAccessesTo(block.races);
  thread.fiber = std::move(thread.fiber).resume();
  NoteAccessesTo(nullptr);
}

// Whether every lane of the mask has begun the exchange that `thread` waits for, with the same
// mask.
bool ExchangeIsComplete(const Block& block, size_t index) {
  const Thread& thread = block.threads[index];
  const unsigned mask = thread.masks[thread.exchanges % 2];
  const size_t first = index / kLanes * kLanes;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    if (first + lane >= block.threads.size()) return false;
    const Thread& other = block.threads[first + lane];
    if (other.exchanges < thread.exchanges) return false;
    // The lane may be one exchange ahead already.
    if (other.masks[thread.exchanges % 2] != mask) return false;
  }
  return true;
}

// Notes that `lane` has reached an exchange of the whole warp. Returns true for the last lane,
// which lets the others go on and does not wait itself.
bool CompletesWhole(Block& block, size_t warp_index, const Thread& thread, int lane) {
  Warp& warp = block.warps[warp_index];
  const size_t slot = thread.exchanges % 2;
  if (warp.whole[slot] != thread.exchanges) {
    warp.whole[slot] = thread.exchanges;
    warp.arrived[slot] = 0;
  }
  warp.arrived[slot] |= 1u << lane;
  if (warp.arrived[slot] != kAllLanes) return false;
  if (block.races != nullptr) {
    block.races->order().PassWhole(warp_index);
    block.races->Moved();
  }
  for (size_t i = warp_index * kLanes; i < (warp_index + 1) * kLanes; ++i) {
    block.threads[i].wait = Wait::kNothing;
  }
  return true;
}

// Runs each thread of the warp once, the last first, so that code that relies on their order gives
// wrong results. Returns false if no thread could run.
bool RunWarp(Block& block, size_t warp, StackPool& pool) {
  bool progress = false;
  const size_t end = std::min(block.threads.size(), (warp + 1) * kLanes);
  for (size_t i = end; i-- > warp * kLanes;) {
    Thread& thread = block.threads[i];
    if (thread.wait == Wait::kWarp && thread.masks[thread.exchanges % 2] != kAllLanes &&
        ExchangeIsComplete(block, i)) {
      thread.wait = Wait::kNothing;
      if (block.races != nullptr) {
        block.races->order().PassInPart(i, thread.masks[thread.exchanges % 2]);
      }
    }
    if (!thread.ended && thread.wait == Wait::kNothing) {
      RunThread(block, thread, pool);
      progress = true;
    }
  }
  return progress;
}

void RunBlock(Block& block, StackPool& pool) {
  const size_t warps = block.warps.size();
  for (bool last_first = true;; last_first = !last_first) {
    bool progress = false;
    // Each warp runs until it has to wait. The order changes between last-first and first-first, so
    // that code that needs the warps to run in step gives wrong results.
    for (size_t i = 0; i < warps; ++i) {
      while (RunWarp(block, last_first ? warps - 1 - i : i, pool)) progress = true;
    }
    size_t ended = 0, at_barrier = 0;
    for (const Thread& thread : block.threads) {
      ended += thread.ended ? 1 : 0;
      at_barrier += !thread.ended && thread.wait == Wait::kBlock ? 1 : 0;
    }
    if (ended == block.threads.size()) return;
    if (ended + at_barrier == block.threads.size()) {
      for (Thread& thread : block.threads) thread.wait = Wait::kNothing;
      if (block.races != nullptr) block.races->order().PassBarrier();
      progress = true;
    }
    if (!progress) Stuck(block);
  }
}

}  // namespace

const Position& Here() { return current->running->position; }

void* DynamicSharedMemory() {
  // Aligned even if the vector is not.
  const auto address = reinterpret_cast<uintptr_t>(current->dynamic_shared.data());
  return reinterpret_cast<void*>((address + 127) & ~uintptr_t{127});
}

void BlockBarrier() {
  current->running->wait = Wait::kBlock;
  Yield();
}

const void* WarpExchange(unsigned mask, const void* mine, size_t bytes, int& lane) {
  Block& block = *current;
  Thread& thread = *block.running;
  const auto index = static_cast<size_t>(&thread - block.threads.data());
  lane = static_cast<int>(index % kLanes);
  if ((mask >> lane & 1u) == 0) {
    std::fprintf(stderr, "cuda emulation: lane %d calls with mask %08x, which leaves it out\n",
                 lane, mask);
    std::abort();
  }
  char* lanes = block.warps[index / kLanes].lanes[thread.exchanges % 2];
  std::memcpy(lanes + static_cast<size_t>(lane) * kLaneBytes, mine, bytes);
  ++thread.exchanges;
  thread.masks[thread.exchanges % 2] = mask;
  if (block.races != nullptr) {
    BlockOrder& order = block.races->order();
    mask == kAllLanes ? order.Arrive(index) : order.ArriveInPart(index);
  }
  if (mask == kAllLanes && CompletesWhole(block, index / kLanes, thread, lane)) return lanes;
  thread.wait = Wait::kWarp;
  Yield();
  return lanes;
}

void Misaligned(const void* address, size_t alignment) {
  std::fprintf(stderr, "cuda emulation: %s accesses %p, which is not a multiple of %zu\n",
               PlaceOf(current->kernel).function.c_str(), address, alignment);
  std::abort();
}

void RunGrid(const void* kernel, const dim3& blocks, const dim3& threads, size_t shared_bytes,
             const std::function<void()>& body) {
  thread_local StackPool pool;
  Block block;
  block.kernel = kernel;
  block.body = &body;
  block.races = Races::OfThisThread();
  if (block.races != nullptr) block.races->BeginLaunch(kernel, blocks, threads);
  const size_t count = size_t{threads.x} * threads.y * threads.z;
  // Filled with NaN: shared memory is not zero on a GPU either.
  for (unsigned z = 0; z < blocks.z; ++z) {
    for (unsigned y = 0; y < blocks.y; ++y) {
      for (unsigned x = blocks.x; x-- > 0;) {
        block.threads.clear();
        block.threads.resize(count);
        block.warps.assign((count + kLanes - 1) / kLanes, {});
        block.dynamic_shared.assign(shared_bytes + 128, static_cast<char>(0xff));
        for (size_t i = 0; i < count; ++i) {
          Position& at = block.threads[i].position;
          at.thread = {static_cast<unsigned>(i % threads.x),
                       static_cast<unsigned>(i / threads.x % threads.y),
                       static_cast<unsigned>(i / threads.x / threads.y)};
          at.block = {x, y, z};
          at.threads = threads;
          at.blocks = blocks;
        }
        if (block.races != nullptr) {
          block.races->BeginBlock((z * blocks.y + y) * blocks.x + x, count,
                                  {reinterpret_cast<uintptr_t>(block.dynamic_shared.data()),
                                   block.dynamic_shared.size()});
        }
        current = &block;
        RunBlock(block, pool);
        current = nullptr;
      }
    }
  }
}

}  // namespace cuda_emulation
