// SPDX-License-Identifier: Apache-2.0

// Member i of every machine owns column i of the tensor. A column is cut into one part per machine,
// and a part into pieces of at most one chunk. A piece takes four steps:
//
//   1. gather: on each machine, the other members send their piece to member i, which adds the
//      pieces up, unrounded;
//   2. collect: member i of each machine sends this sum to member i of the machine that owns the
//      part; this member adds the machines' sums up and rounds once;
//   3. it sends the result to member i of every other machine;
//   4. member i of each machine sends the result to the other members of its machine.
//
// A member has two tags: addends (steps 1 and 2) use the first, results (3 and 4) the second. A
// peer is either on this machine or on another, so (peer, tag) identifies the step.
#include "apogee/comm/process/hierarchy.h"

#include <algorithm>
#include <bit>

#include "apogee/comm/process/chunks.h"
#include "apogee/comm/tree_reduce.h"

namespace apogee::comm::process {
namespace {

constexpr int kAddends = 0, kResults = 1;

// A run of elements of one part of a column.
struct Piece {
  size_t machine;  // the machine that owns the part
  int64_t round;   // index of the piece within its part
  int64_t begin, count;
};

class Hierarchy : public Exchange {
 public:
  Hierarchy(Operation& operation, Transfers& transfers, size_t members_per_machine)
      : Exchange(operation, transfers),
        element_(DTypeSize(call_.input.dtype())),
        partial_element_(DTypeSize(PartialDType(call_.input.dtype()))),
        num_local_(members_per_machine),
        num_machines_(size_ / members_per_machine),
        machine_(self_ / members_per_machine),
        column_(self_ % members_per_machine) {}

  void Start() {
    pieces_ = PiecesOf(column_);
    for (size_t k = 0; k < pieces_.size(); ++k) {
      if (pieces_[k].machine == machine_) own_.push_back(static_cast<int64_t>(k));
      slot_bytes_ = std::max(slot_bytes_, pieces_[k].count * partial_element_);
    }
    to_gather_.assign(pieces_.size(), num_local_ - 1);
    to_collect_.assign(own_.size(), num_machines_);
    num_slots_ = std::min(kWindow, num_pieces());
    num_own_slots_ = std::min(kWindow, num_own());
    gathered_.reset(Allocate(num_slots_, num_local_));
    partials_.reset(Allocate(num_slots_, 1));
    collected_.reset(Allocate(num_own_slots_, num_machines_));
    add_local_ = AddSteps(num_pieces(), [this](int64_t k) { AddLocal(k); });
    add_machines_ = AddSteps(num_own(), [this](int64_t round) { AddMachines(round); });
    pass_on_ = AddSteps(num_pieces(), [this](int64_t k) { PassOn(k); });
    free_slots_ = AddSteps(num_pieces(), [this](int64_t k) {
      if (k + num_slots_ < num_pieces()) Gather(k + num_slots_);
    });
    for (int64_t k = 0; k < num_slots_; ++k) Gather(k);
    for (int64_t round = 0; round < num_own_slots_; ++round) Collect(round);
    ForOthers(column_, num_local_, [this](size_t column) { GiveColumn(column); });
  }

 private:
  char* Allocate(int64_t slots, size_t members) const {
    return new char[static_cast<size_t>(slots * slot_bytes_) * members];
  }
  size_t LocalPeer(size_t column) const { return machine_ * num_local_ + column; }
  size_t PeerOn(size_t machine) const { return machine * num_local_ + column_; }
  int64_t num_pieces() const { return static_cast<int64_t>(pieces_.size()); }
  int64_t num_own() const { return static_cast<int64_t>(own_.size()); }
  const Piece& At(int64_t k) const { return pieces_[static_cast<size_t>(k)]; }

  // The pieces of a column, in the order in which this machine adds them up: one chunk of every
  // machine's part, its own part last, then the next chunks. This order prevents deadlock: if a
  // machine in an earlier round sends something, the others have room for it, because all have sent
  // what the rounds before need.
  std::vector<Piece> PiecesOf(size_t column) const {
    const int64_t total = call_.input.numel(), chunk = kChunkBytes / partial_element_;
    const int64_t first = ShareBegin(total, column, num_local_, element_);
    const int64_t length = ShareBegin(total, column + 1, num_local_, element_) - first;
    std::vector<Piece> pieces;
    for (int64_t round = 0;; ++round) {
      const size_t before = pieces.size();
      for (size_t step = 1; step <= num_machines_; ++step) {
        const size_t machine = (machine_ + step) % num_machines_;
        const int64_t begin = ShareBegin(length, machine, num_machines_, element_) + round * chunk;
        const int64_t end = ShareBegin(length, machine + 1, num_machines_, element_);
        if (begin < end) {
          pieces.push_back({machine, round, first + begin, std::min(chunk, end - begin)});
        }
      }
      if (pieces.size() == before) return pieces;
    }
  }

  char* Input(const Piece& piece) const { return BytesAt(call_.input, piece.begin * element_); }
  char* Output(const Piece& piece) const { return BytesAt(call_.output, piece.begin * element_); }
  char* Slot(const std::unique_ptr<char[]>& memory, int64_t slot, size_t members,
             size_t member) const {
    return memory.get() +
           (slot * static_cast<int64_t>(members) + static_cast<int64_t>(member)) * slot_bytes_;
  }
  char* Gathered(int64_t k, size_t column) const {
    return Slot(gathered_, k % num_slots_, num_local_, column);
  }
  char* Partial(int64_t k) const { return Slot(partials_, k % num_slots_, 1, 0); }
  char* Collected(int64_t round, size_t machine) const {
    return Slot(collected_, round % num_own_slots_, num_machines_, machine);
  }

  // Sends local member `column` this member's addends. The result overwrites the addend, which must
  // have been sent before.
  void GiveColumn(size_t column) {
    const std::vector<Piece> pieces = PiecesOf(column);
    InOrder* const sent =
        AddSteps(static_cast<int64_t>(pieces.size()), [this, column, pieces](int64_t k) {
          const Piece& piece = pieces[static_cast<size_t>(k)];
          ReceiveBytes(LocalPeer(column), kResults, Output(piece), piece.count * element_);
        });
    for (size_t k = 0; k < pieces.size(); ++k) {
      SendBytes(LocalPeer(column), kAddends, Input(pieces[k]), pieces[k].count * element_,
                [sent, k] { sent->Ready(static_cast<int64_t>(k)); });
    }
  }

  void Gather(int64_t k) {
    ForOthers(column_, num_local_, [this, k](size_t column) {
      ReceiveBytes(LocalPeer(column), kAddends, Gathered(k, column), At(k).count * element_,
                   [this, k] {
                     if (--to_gather_[static_cast<size_t>(k)] == 0) add_local_->Ready(k);
                   });
    });
  }
  void AddLocal(int64_t k) {
    const Piece& piece = At(k);
    std::vector<const void*> inputs(num_local_);
    for (size_t column = 0; column < num_local_; ++column) {
      inputs[column] = column == column_ ? Input(piece) : Gathered(k, column);
    }
    TreeReducePartial(CollectiveName(call_.kind), call_.input.dtype(), call_.op, inputs, Partial(k),
                      piece.count);
    if (piece.machine == machine_) return HasCollected(piece.round);
    SendBytes(PeerOn(piece.machine), kAddends, Partial(k), piece.count * partial_element_,
              [this, k] { free_slots_->Ready(k); });
    // Receiving here is safe: only this member has read these addends, and its machine's sum is in
    // another buffer.
    ReceiveBytes(PeerOn(piece.machine), kResults, Output(piece), piece.count * element_,
                 [this, k] { pass_on_->Ready(k); });
  }

  void Collect(int64_t round) {
    const int64_t bytes = At(own_[static_cast<size_t>(round)]).count * partial_element_;
    ForOthers(machine_, num_machines_, [this, round, bytes](size_t machine) {
      ReceiveBytes(PeerOn(machine), kAddends, Collected(round, machine), bytes,
                   [this, round] { HasCollected(round); });
    });
  }
  void HasCollected(int64_t round) {
    if (--to_collect_[static_cast<size_t>(round)] == 0) add_machines_->Ready(round);
  }
  void AddMachines(int64_t round) {
    const int64_t k = own_[static_cast<size_t>(round)];
    const Piece& piece = At(k);
    std::vector<const void*> inputs(num_machines_);
    for (size_t machine = 0; machine < num_machines_; ++machine) {
      inputs[machine] = machine == machine_ ? Partial(k) : Collected(round, machine);
    }
    void* const outputs[] = {Output(piece)};
    TreeReduceFinish(CollectiveName(call_.kind), call_.input.dtype(), call_.op, inputs, outputs,
                     piece.count);
    ForOthers(machine_, num_machines_, [&](size_t machine) {
      SendBytes(PeerOn(machine), kResults, Output(piece), piece.count * element_);
    });
    pass_on_->Ready(k);
    free_slots_->Ready(k);
    if (round + num_own_slots_ < num_own()) Collect(round + num_own_slots_);
  }

  void PassOn(int64_t k) {
    ForOthers(column_, num_local_, [this, k](size_t column) {
      SendBytes(LocalPeer(column), kResults, Output(At(k)), At(k).count * element_);
    });
  }

  int64_t element_, partial_element_;  // bytes
  size_t num_local_, num_machines_, machine_, column_;
  std::vector<Piece> pieces_;  // the pieces of this member's column
  std::vector<int64_t> own_;   // by round: index in pieces_ of this machine's own piece
  int64_t num_slots_ = 0, num_own_slots_ = 0;
  int64_t slot_bytes_ = 0;             // bytes of the largest piece, unrounded
  std::vector<size_t> to_gather_;      // by piece: addends that have not arrived yet
  std::vector<size_t> to_collect_;     // by round: machines' sums that have not arrived yet
  std::unique_ptr<char[]> gathered_;   // [slot][local member][slot_bytes_]
  std::unique_ptr<char[]> partials_;   // [slot][slot_bytes_]
  std::unique_ptr<char[]> collected_;  // [slot of a round][machine][slot_bytes_]
  InOrder *add_local_ = nullptr, *add_machines_ = nullptr;
  InOrder *pass_on_ = nullptr, *free_slots_ = nullptr;
};

}  // namespace

size_t MembersPerMachine(std::span<const int> machines) {
  const auto fits = [&](size_t local) {
    if (machines.size() % local != 0) return false;
    for (size_t place = 0; place < machines.size(); ++place) {
      if (machines[place] != machines[place - place % local]) return false;
    }
    return true;
  };
  if (std::ranges::count(machines, machines[0]) == std::ssize(machines)) return 1;
  size_t local = std::bit_floor(machines.size());
  while (!fits(local)) local /= 2;
  return local;
}

void StartHierarchicalAllReduce(Operation& operation, Transfers& transfers,
                                size_t members_per_machine) {
  const auto hierarchy = std::make_shared<Hierarchy>(operation, transfers, members_per_machine);
  operation.exchange = hierarchy;
  hierarchy->Start();
}

}  // namespace apogee::comm::process
