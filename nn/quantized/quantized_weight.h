// SPDX-License-Identifier: Apache-2.0

// QuantizedWeight: a frozen parameter that is held in 4 or 8 bits (Dettmers et al., "QLoRA", 2023;
// tensor/kernels/block_codes.h). It stands between two parameters of one name:
//
//   weight()   what layers read: each read decodes a new tensor
//   stored()   what the model has in its place (Module::Parameters): u8 [bytes], frozen
//
//   nn::QuantizeLinears(model, {.kind = BlockCodeKind::kNf4});
//   layer.weight()->value();                  // f32 [out, in], decoded from stored()->value()
//
// So plugins cut, gather, compare and digest the bytes, as of any frozen parameter, and layers know
// nothing of codes. A graph keeps the bytes, not the decoded tensor, and decodes again in backward.
// Blocks are those of the whole weight: a rank with a part of it has the bytes of every block that
// it needs, so its values are those of one rank.
#ifndef APOGEE_NN_QUANTIZED_QUANTIZED_WEIGHT_H_
#define APOGEE_NN_QUANTIZED_QUANTIZED_WEIGHT_H_

#include <memory>

#include "apogee/autograd/parameter.h"
#include "apogee/layout/layout.h"
#include "apogee/nn/quantized/quantize.h"

namespace apogee {
struct BlockCodes;
}

namespace apogee::nn {

class QuantizedWeight {
 public:
  // Freezes `weight`, and moves its value, if it has one, into stored(): at once, or, if it is
  // lazy, when stored() is first read. Throws Error for values that are not finite.
  QuantizedWeight(autograd::ParameterPtr weight, const QuantizeOptions& options);

  const autograd::ParameterPtr& weight() const { return weight_; }
  const autograd::ParameterPtr& stored() const { return stored_; }
  const BlockCodes& codes() const;

  // Gives the weight a first value of this dtype, which stored() takes encoded; `lazy`: when
  // stored() is first read.
  void SetValue(autograd::LazyValue value, bool lazy);
  // Gives stored() these bytes. `dtype`: of the weight.
  void SetBytes(const Tensor& bytes, DType dtype);
  // The dtype in which weight() is read from now on. Decoded values are rounded to it once.
  void set_dtype(DType dtype);
  // The elements of stored() that a rank needs for a part of the weight. Parts of several ranks may
  // overlap there: in the tables, and where a block or a byte has elements of both.
  Layout StoredLayout(const Layout& part) const;
  // From now on stored() has the elements of StoredLayout(part), `bytes`, and weight() is `part`,
  // in `shape`.
  void SetPart(const Layout& part, const Shape& shape, const Tensor& bytes);
  // Gives the weight a tensor of its own again, with the values that it has.
  void Restore();

 private:
  class Storage;

  autograd::ParameterPtr weight_, stored_;
  std::shared_ptr<Storage> storage_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_QUANTIZED_QUANTIZED_WEIGHT_H_
