// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/documents.h"

#include <algorithm>
#include <utility>

namespace apogee::autograd {
namespace {

thread_local std::shared_ptr<Documents> current_documents;

bool Equal(const SequencePart& a, const SequencePart& b) {
  return a.rank == b.rank && a.size == b.size && a.layout == b.layout;
}

}  // namespace

Documents::Documents(const Tensor& starts) {
  APOGEE_CHECK(starts.defined() && starts.rank() == 2 && starts.dtype() == DType::kI64,
               "documents: starts must be i64 [batch, tokens], got ",
               starts.defined() ? DTypeName(starts.dtype()) : "an undefined tensor", " ",
               starts.shape());
  context_ = starts.context();
  batch_ = starts.size(0);
  tokens_ = starts.size(1);
  starts_ = starts.ToVector<int64_t>();
  for (int64_t b = 0; b < batch_; ++b) {
    const int64_t* row = starts_.data() + b * tokens_;
    for (int64_t t = 0; t < tokens_; ++t) {
      const int64_t before = t == 0 ? 0 : row[t - 1];
      APOGEE_CHECK(row[t] == t || row[t] == before, "documents: starts[", b, ", ", t, "] is ",
                   row[t], "; it must be ", t, " if this token begins a document",
                   t == 0 ? "" : ", else that of the token before it, ",
                   t == 0 ? "" : std::to_string(before));
    }
  }
}

Documents::Documents(int64_t batch, int64_t tokens, ContextPtr context)
    : context_(std::move(context)),
      batch_(batch),
      tokens_(tokens),
      starts_(static_cast<size_t>(batch * tokens), 0) {}

std::shared_ptr<Documents> Documents::OfMask(const Tensor& mask) {
  APOGEE_CHECK(mask.defined() && mask.rank() == 2 && mask.dtype() == DType::kI64,
               "documents: a mask of padding must be i64 [batch, tokens], got ",
               mask.defined() ? DTypeName(mask.dtype()) : "an undefined tensor", " ", mask.shape());
  auto documents = std::make_shared<Documents>(mask.size(0), mask.size(1), mask.context());
  const std::vector<int64_t> values = mask.ToVector<int64_t>();
  std::vector<uint8_t> seen;
  for (size_t i = 0; i < values.size(); ++i) {
    APOGEE_CHECK(values[i] == 0 || values[i] == 1, "documents: mask[",
                 static_cast<int64_t>(i) / mask.size(1), ", ",
                 static_cast<int64_t>(i) % mask.size(1), "] is ", values[i],
                 "; it must be 1 for a token or 0 for padding");
    seen.push_back(static_cast<uint8_t>(values[i]));
  }
  documents->seen_keys_ =
      Tensor::FromVector<uint8_t>(seen, {mask.size(0), 1, 1, mask.size(1)}, mask.context());
  return documents;
}

void Documents::CheckFit(const char* what, int64_t batch, int64_t tokens) const {
  APOGEE_CHECK(batch == batch_ && tokens == tokens_, what, ": starts [", batch_, ", ", tokens_,
               "] are not those of ", batch, " sequences of ", tokens,
               " tokens; pass the starts of the same batch");
}

// of_token(start, index in the sequence) for the tokens of made.queries.
template <typename Fn>
Tensor Documents::Make(Made made, const Fn& of_token) {
  const auto known = std::ranges::find_if(made_, [&made](const Made& other) {
    return other.are_positions == made.are_positions && other.window == made.window &&
           Equal(other.queries, made.queries) && Equal(other.keys, made.keys);
  });
  if (known != made_.end()) return known->tensor;
  const int64_t held = tokens_ / made.queries.size;
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(batch_ * held));
  for (int64_t b = 0; b < batch_; ++b) {
    for (const TokenRun& run : made.queries.Runs(held)) {
      for (int64_t t = run.first; t < run.first + run.length; ++t) {
        values.push_back(of_token(starts_[static_cast<size_t>(b * tokens_ + t)], t));
      }
    }
  }
  made.tensor = Tensor::FromVector<int64_t>(values, {batch_, held}, context_);
  made_.push_back(std::move(made));
  return made_.back().tensor;
}

Tensor Documents::FirstKeys(const SequencePart& queries, const SequencePart& keys, int64_t window) {
  const std::vector<TokenRun> runs = keys.Runs(tokens_ / keys.size);
  const auto keys_before = [&runs, window](int64_t start, int64_t t) {
    const int64_t first = window == 0 ? start : std::max(start, t - window + 1);
    int64_t before = 0;
    for (const TokenRun& run : runs) {
      before += std::clamp<int64_t>(first - run.first, 0, run.length);
    }
    return before;
  };
  return Make({.queries = queries, .keys = keys, .window = window}, keys_before);
}

Tensor Documents::Positions(const SequencePart& part) {
  return Make({.queries = part, .keys = part, .are_positions = true},
              [](int64_t start, int64_t t) { return t - start; });
}

const std::shared_ptr<Documents>& CurrentDocuments() { return current_documents; }

DocumentsGuard::DocumentsGuard(std::shared_ptr<Documents> documents)
    : previous_(std::exchange(current_documents, std::move(documents))) {}
DocumentsGuard::~DocumentsGuard() { current_documents = std::move(previous_); }

}  // namespace apogee::autograd
