// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/embedding.h"

#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"

namespace apogee::autograd {
namespace {

class EmbeddingNode : public Node {
 public:
  EmbeddingNode(const Tensor& ids, const Tensor& table, int64_t first, int64_t padding_id)
      : ids_(ids),
        vocab_(table.size(0)),
        first_(first),
        padding_id_(padding_id),
        grad_dtype_(GradDType(table)) {}
  const char* name() const override { return "embedding"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    return {ops::EmbeddingBackward(ids_.Take(context), grads[0], vocab_, grad_dtype_, first_,
                                   padding_id_)};
  }
  void ReleaseSaved() override { ids_.Reset(); }

 private:
  SavedTensor ids_;
  int64_t vocab_, first_, padding_id_;
  DType grad_dtype_;
};

}  // namespace

Tensor Embedding(const Tensor& ids_in, const Tensor& table,
                 const std::optional<ops::VocabPart>& part, int64_t padding_id) {
  const Tensor ids = ids_in.Detach().Contiguous();
  Tensor y = ops::EmbeddingForward(ids, table, part);
  const int64_t vocab = part ? part->vocab_size : table.size(0);
  APOGEE_CHECK(padding_id >= -1 && padding_id < vocab, "embedding: the padding id ", padding_id,
               " is outside [0, ", vocab, "); use -1 for none");
  if (NeedsGrad({table})) {
    Attach(y, std::make_shared<EmbeddingNode>(ids, table, part ? part->first : 0, padding_id),
           {table});
  }
  return y;
}

}  // namespace apogee::autograd
