// SPDX-License-Identifier: Apache-2.0

// Every differentiable op with inputs of three shapes, and the same computation in PyTorch.
//
//   for (const OpCase& op : OpTable()) {
//     const Tensors in = op.Inputs(context, DType::kF64);
//     ExpectGradients(in, op.fn);
//   }
#ifndef APOGEE_TESTS_AUTOGRAD_OP_TABLE_H_
#define APOGEE_TESTS_AUTOGRAD_OP_TABLE_H_

#include <functional>
#include <string>
#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee::testing {

using Tensors = std::vector<Tensor>;

// Normal numbers, kept away from places where an op is not smooth. kDistinct: numbers that differ
// from their neighbours, in no order.
enum class Domain { kAny, kPositive, kNonZero, kDistinct };

struct OpInput {
  Shape shape;
  Domain domain = Domain::kAny;
};

struct OpCase {
  std::string name;  // unique
  std::vector<OpInput> inputs;
  std::function<Tensor(const Tensors&)> fn;
  // In Python, with the inputs x, y, z, u, v, w, p and F = torch.nn.functional.
  std::string torch;

  Tensors Inputs(const ContextPtr& context, DType dtype) const;
};

std::vector<OpCase> OpTable();
// Parts of it.
std::vector<OpCase> ConvolutionCases();

// An index for a dim of `size` elements, with repetitions, of any shape.
Tensor IndexOf(const Shape& shape, int64_t size, const ContextPtr& context);
// Numbers in [0, 1), as targets of losses.
Tensor FractionsLike(const Tensor& x);
// The place in a mask (1 or 0) of every third element.
Tensor EveryThird(const Shape& shape, const ContextPtr& context);

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_AUTOGRAD_OP_TABLE_H_
