// SPDX-License-Identifier: Apache-2.0

// Documents: where the documents of packed sequences begin. In a model, attention then stays within
// each document, and positions count from the document's first token.
//
//   // i64 [B, T]: for each token the index, in its sequence, of its document's first token.
//   // The documents of this sequence have 3, 1 and 2 tokens:
//   const Tensor starts = Tensor::FromVector<int64_t>({0, 0, 0, 3, 4, 4}, {1, 6}, context);
//   const autograd::DocumentsGuard guard(std::make_shared<autograd::Documents>(starts));
//   Tensor logits = model.Forward(tokens);
//
// A model that promises to heed them (nn::Module::takes_documents) is called with the named tensors
// "tokens" and "starts" instead, which makes the guard. A guard covers a scope of one thread. What
// autograd::Recompute runs again finds the documents of its first run.
#ifndef APOGEE_AUTOGRAD_DOCUMENTS_H_
#define APOGEE_AUTOGRAD_DOCUMENTS_H_

#include <memory>
#include <vector>

#include "apogee/layout/sequence_part.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

class Documents {
 public:
  // Reads `starts` on the host once. Throws Error that names the place unless it is i64 [B, T], and
  // each token either begins a document (its start is its own index) or continues the one of the
  // token before it. Must stay within one thread.
  explicit Documents(const Tensor& starts);
  // Sequences of one document each.
  Documents(int64_t batch, int64_t tokens, ContextPtr context);
  // Sequences of one document each, with padding that no token attends to. `mask`: i64 [B, T], 1
  // for a token, 0 for padding. Throws Error that names the place for another value.
  static std::shared_ptr<Documents> OfMask(const Tensor& mask);

  int64_t batch() const { return batch_; }
  int64_t tokens() const { return tokens_; }
  // Throws Error, which begins with `what`, unless these are the documents of `batch` sequences of
  // `tokens` tokens.
  void CheckFit(const char* what, int64_t batch, int64_t tokens) const;

  // ops::AttentionOptions::first_keys of the tokens that `queries` holds, among the keys of the
  // tokens that `keys` holds: [B, T / size]. With a `window` above 0 a token sees only the last
  // `window` tokens of its document, itself included. Parts are made once, and shared by all
  // layers.
  Tensor FirstKeys(const SequencePart& queries, const SequencePart& keys, int64_t window = 0);
  // ops::AttentionOptions::mask of OfMask, u8 [B, 1, 1, T]; undefined: there is no padding.
  const Tensor& seen_keys() const { return seen_keys_; }
  // i64 [B, T / size]: the place in its document of each token that `part` holds.
  Tensor Positions(const SequencePart& part);

 private:
  struct Made {
    SequencePart queries, keys;
    int64_t window = 0;
    bool are_positions = false;
    Tensor tensor = {};
  };
  template <typename Fn>
  Tensor Make(Made made, const Fn& of_token);

  ContextPtr context_;
  int64_t batch_ = 0, tokens_ = 0;
  std::vector<int64_t> starts_;
  Tensor seen_keys_;
  std::vector<Made> made_;
};

// Those of this thread's innermost guard; null: sequences are one document each.
const std::shared_ptr<Documents>& CurrentDocuments();

// Sets them for a scope, and restores the previous ones.
class DocumentsGuard {
 public:
  explicit DocumentsGuard(std::shared_ptr<Documents> documents);
  ~DocumentsGuard();
  DocumentsGuard(const DocumentsGuard&) = delete;
  DocumentsGuard& operator=(const DocumentsGuard&) = delete;

 private:
  std::shared_ptr<Documents> previous_;
};

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_DOCUMENTS_H_
