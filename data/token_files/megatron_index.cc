// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/token_files/megatron_index.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace apogee::data {

const char kMegatronMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};

namespace {

constexpr int64_t kBlock = 128;
// Of the check when the index is opened: it reads everything, so that fewer calls are faster.
constexpr int64_t kCheckBlock = 4096;

struct Code {
  uint8_t code;
  TokenType type;
};
constexpr Code kCodes[] = {{1, TokenType::kU8},  {2, TokenType::kI8},  {3, TokenType::kI16},
                           {4, TokenType::kI32}, {5, TokenType::kI64}, {8, TokenType::kU16}};

absl::StatusOr<TokenType> TypeOf(const std::string& path, uint8_t code) {
  for (const Code& known : kCodes) {
    if (code == known.code) return known.type;
  }
  if (code == 6 || code == 7) {
    return DataLoss(path, ": dtype code is ", int{code}, " (", code == 6 ? "f64" : "f32",
                    "), but ids of tokens are integers");
  }
  return DataLoss(path, ": dtype code is ", int{code},
                  "; known: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16");
}

absl::Status CheckMagic(const RandomBytes& idx) {
  std::array<std::byte, sizeof(kMegatronMagic)> magic{};
  if (idx.size() < static_cast<int64_t>(magic.size())) return absl::OkStatus();  // cut short
  APOGEE_RETURN_IF_ERROR(idx.Read(0, magic));
  if (std::memcmp(magic.data(), kMegatronMagic, magic.size()) == 0) return absl::OkStatus();
  if (std::memcmp(magic.data(), "TNTIDX", 6) == 0) {
    return DataLoss(idx.path(),
                    ": magic is TNTIDX, the format before Megatron's MMIDIDX; convert the "
                    "pair with the tools of the library that wrote it");
  }
  return DataLoss(idx.path(), ": does not begin with the magic MMIDIDX of a Megatron index");
}

// Reads an array of the index, a block at a time.
template <typename T>
class Window {
 public:
  Window(const RandomBytes& idx, int64_t first_byte, int64_t size)
      : idx_(idx), first_byte_(first_byte), size_(size) {}

  absl::StatusOr<T> At(int64_t i) {
    if (i >= size_) return DataLoss(idx_.path(), ": has changed since it was opened");
    if (i / kBlock != block_) {
      block_ = i / kBlock;
      const int64_t first = block_ * kBlock;
      const auto count = static_cast<size_t>(std::min(kBlock, size_ - first));
      APOGEE_RETURN_IF_ERROR(idx_.Read(first_byte_ + first * static_cast<int64_t>(sizeof(T)),
                                       std::as_writable_bytes(std::span(values_).first(count))));
    }
    return values_[static_cast<size_t>(i % kBlock)];
  }

 private:
  const RandomBytes& idx_;
  const int64_t first_byte_, size_;
  int64_t block_ = -1;
  std::array<T, kBlock> values_;
};

// The last block whose first value is less than `value`, or the first one.
int64_t BlockBefore(const std::vector<int64_t>& firsts, int64_t value) {
  return std::max<int64_t>(0, std::ranges::lower_bound(firsts, value) - firsts.begin() - 1);
}

}  // namespace

uint8_t MegatronCode(TokenType type) { return std::ranges::find(kCodes, type, &Code::type)->code; }

absl::StatusOr<MegatronIndex> MegatronIndex::Read(std::unique_ptr<RandomBytes> idx,
                                                  const std::string& bin_path, int64_t bin_bytes) {
  MegatronIndex index(std::move(idx));
  APOGEE_RETURN_IF_ERROR(index.ReadHeader());
  APOGEE_RETURN_IF_ERROR(index.CheckSequences(bin_path, bin_bytes));
  APOGEE_RETURN_IF_ERROR(index.CheckDocuments());
  return index;
}

absl::Status MegatronIndex::ReadHeader() {
  const std::string& path = idx_->path();
  APOGEE_RETURN_IF_ERROR(CheckMagic(*idx_));
  if (idx_->size() < kMegatronHeaderBytes) {
    return DataLoss(path, ": has ", idx_->size(), " bytes, but the header takes ",
                    kMegatronHeaderBytes);
  }
  std::array<std::byte, kMegatronHeaderBytes> bytes;
  APOGEE_RETURN_IF_ERROR(idx_->Read(0, bytes));
  const auto version = Load<uint64_t>(bytes.data() + 9);
  if (version != 1) return DataLoss(path, ": version is ", version, ", known is 1");
  APOGEE_ASSIGN_OR_RETURN(type_, TypeOf(path, Load<uint8_t>(bytes.data() + 17)));
  // Divisions, because products could overflow.
  const auto sequences = Load<uint64_t>(bytes.data() + 18);
  const auto indices = Load<uint64_t>(bytes.data() + 26);
  auto left = static_cast<uint64_t>(idx_->size() - kMegatronHeaderBytes);
  if (sequences > left / 12) {
    return DataLoss(path, ": the number of sequences is ", sequences,
                    ", but after the header there is room for ", left / 12, " (12 bytes each)");
  }
  left -= 12 * sequences;
  if (indices > left / 8) {
    return DataLoss(path, ": the number of document indices is ", indices,
                    ", but after the sequences there is room for ", left / 8, " (8 bytes each)");
  }
  if (indices == 0) {
    return DataLoss(path, ": has no document indices; they are 0, ..., the number of sequences");
  }
  left -= 8 * indices;
  if (left != 0 && left != sequences) {
    return DataLoss(path, ": ", left, " bytes follow the document indices; there are none, or ",
                    sequences, ", one mode per sequence");
  }
  has_modes_ = left != 0;
  num_sequences_ = static_cast<int64_t>(sequences);
  num_indices_ = static_cast<int64_t>(indices);
  return absl::OkStatus();
}

absl::Status MegatronIndex::CheckSequences(const std::string& bin_path, int64_t bin_bytes) {
  const std::string& path = idx_->path();
  const int64_t id_bytes = SizeOf(type_);
  std::array<int32_t, kCheckBlock> lengths;
  std::array<int64_t, kCheckBlock> offsets;
  int64_t last_byte = 0;
  bin_bytes_ = bin_bytes;
  for (int64_t first = 0; first < num_sequences_; first += kCheckBlock) {
    const auto count = static_cast<size_t>(std::min(kCheckBlock, num_sequences_ - first));
    APOGEE_RETURN_IF_ERROR(ReadLengths(first, std::span(lengths).first(count)));
    APOGEE_RETURN_IF_ERROR(ReadOffsets(first, std::span(offsets).first(count)));
    for (size_t i = 0; i < count; ++i) {
      const int64_t sequence = first + static_cast<int64_t>(i);
      const int64_t bytes = lengths[i] * id_bytes;
      if (sequence % kBlock == 0) starts_.push_back(num_tokens_);
      if (lengths[i] < 0) {
        return DataLoss(path, ": the length of sequence ", sequence, " is ", lengths[i],
                        ", it is at least 0");
      }
      if (offsets[i] < 0 || offsets[i] > bin_bytes || offsets[i] % id_bytes != 0) {
        return DataLoss(path, ": the offset of sequence ", sequence, " is ", offsets[i],
                        "; it must be a multiple of ", id_bytes, " in [0, ", bin_bytes,
                        "], the size of ", bin_path);
      }
      if (bytes > bin_bytes - offsets[i]) {
        return DataLoss(path, ": sequence ", sequence, " has ", lengths[i], " ids of ", Name(type_),
                        " from byte ", offsets[i], " on, but ", bin_path, " has ", bin_bytes,
                        " bytes");
      }
      tiled_ = tiled_ && offsets[i] == num_tokens_ * id_bytes;
      last_byte = std::max(last_byte, offsets[i] + bytes);
      if (__builtin_add_overflow(num_tokens_, int64_t{lengths[i]}, &num_tokens_) ||
          num_tokens_ > (int64_t{1} << 60)) {
        return DataLoss(path, ": the lengths up to sequence ", sequence,
                        " add up to more than 2^60 tokens");
      }
    }
  }
  if (last_byte != bin_bytes) {
    return DataLoss(bin_path, ": has ", bin_bytes, " bytes, but the sequences of ", path,
                    " end at byte ", last_byte, ": the files do not belong together");
  }
  return absl::OkStatus();
}

absl::Status MegatronIndex::CheckDocuments() {
  std::array<int64_t, kCheckBlock> indices;
  int64_t before = 0;
  for (int64_t first = 0; first < num_indices_; first += kCheckBlock) {
    const std::span<int64_t> piece(
        indices.data(), static_cast<size_t>(std::min(kCheckBlock, num_indices_ - first)));
    APOGEE_RETURN_IF_ERROR(ReadIndices(first, piece));
    for (size_t i = 0; i < piece.size(); ++i) {
      const int64_t index = first + static_cast<int64_t>(i);
      if (index % kBlock == 0) marks_.push_back(piece[i]);
      if (index == 0 && piece[i] != 0) {
        return DataLoss(idx_->path(), ": the first document index is ", piece[i], ", it must be 0");
      }
      if (piece[i] < before || piece[i] > num_sequences_) {
        return DataLoss(idx_->path(), ": document index ", index, " is ", piece[i],
                        "; it must be in [", before, ", ", num_sequences_,
                        "], from the one before it to the number of sequences");
      }
      before = piece[i];
    }
  }
  if (before != num_sequences_) {
    return DataLoss(idx_->path(), ": the last document index is ", before,
                    ", it must be the number of sequences, ", num_sequences_);
  }
  return absl::OkStatus();
}

absl::Status MegatronIndex::ReadLengths(int64_t first, std::span<int32_t> lengths) const {
  return idx_->Read(kMegatronHeaderBytes + 4 * first, std::as_writable_bytes(lengths));
}

absl::Status MegatronIndex::ReadOffsets(int64_t first, std::span<int64_t> offsets) const {
  return idx_->Read(kMegatronHeaderBytes + 4 * num_sequences_ + 8 * first,
                    std::as_writable_bytes(offsets));
}

absl::Status MegatronIndex::ReadIndices(int64_t first, std::span<int64_t> indices) const {
  return idx_->Read(kMegatronHeaderBytes + 12 * num_sequences_ + 8 * first,
                    std::as_writable_bytes(indices));
}

absl::StatusOr<int8_t> MegatronIndex::Mode(int64_t sequence) const {
  std::array<int8_t, 1> mode;
  APOGEE_RETURN_IF_ERROR(
      idx_->Read(kMegatronHeaderBytes + 12 * num_sequences_ + 8 * num_indices_ + sequence,
                 std::as_writable_bytes(std::span(mode))));
  return mode[0];
}

absl::StatusOr<MegatronIndex::Run> MegatronIndex::RunAt(int64_t position, int64_t most) const {
  const int64_t id_bytes = SizeOf(type_);
  if (tiled_) return Run{position * id_bytes, std::min(most, num_tokens_ - position)};
  const int64_t block = std::ranges::upper_bound(starts_, position) - starts_.begin() - 1;
  const int64_t first = block * kBlock;
  const auto count = static_cast<size_t>(std::min(kBlock, num_sequences_ - first));
  std::array<int32_t, kBlock> lengths;
  std::array<int64_t, kBlock> offsets;
  APOGEE_RETURN_IF_ERROR(ReadLengths(first, std::span(lengths).first(count)));
  APOGEE_RETURN_IF_ERROR(ReadOffsets(first, std::span(offsets).first(count)));
  int64_t start = starts_[static_cast<size_t>(block)];
  for (size_t i = 0; i < count; ++i) {
    const int64_t inside = position - start;
    if (inside < lengths[i] && offsets[i] >= 0 && offsets[i] <= bin_bytes_) {
      return Run{offsets[i] + inside * id_bytes, std::min(most, lengths[i] - inside)};
    }
    start += lengths[i];
  }
  return DataLoss(idx_->path(), ": the sequences before number ",
                  first + static_cast<int64_t>(count), " have changed since it was opened");
}

absl::StatusOr<std::vector<int64_t>> MegatronIndex::DocumentBegins(int64_t first,
                                                                   int64_t length) const {
  std::vector<int64_t> begins;
  if (num_sequences_ == 0) return begins;
  Window<int32_t> lengths(*idx_, kMegatronHeaderBytes, num_sequences_);
  Window<int64_t> indices(*idx_, kMegatronHeaderBytes + 12 * num_sequences_, num_indices_);
  const int64_t block = BlockBefore(starts_, first);
  int64_t start = starts_[static_cast<size_t>(block)];
  int64_t index = -1;
  for (int64_t sequence = block * kBlock; sequence < num_sequences_ && start < first + length;
       ++sequence) {
    if (start >= first) {
      if (index < 0) index = BlockBefore(marks_, sequence) * kBlock;
      APOGEE_ASSIGN_OR_RETURN(int64_t document, indices.At(index));
      while (document < sequence) {
        APOGEE_ASSIGN_OR_RETURN(document, indices.At(++index));
      }
      const bool is_new = begins.empty() || begins.back() != start;
      if (document == sequence && is_new) begins.push_back(start);
    }
    APOGEE_ASSIGN_OR_RETURN(const int32_t tokens, lengths.At(sequence));
    start += tokens;
  }
  return begins;
}

}  // namespace apogee::data
