// SPDX-License-Identifier: Apache-2.0

// The matrices that a parameter consists of, for rules that treat each one as a whole.
//
//   for (const MatrixPart& part : MatricesIn(shape, sections, /*batch_convolutions=*/false)) {
//     const Tensor own = part.Of(momentum);                 // [part.rows, part.cols]
//   }
//
// A tensor of three dims is a batch of matrices, such as experts. One of more is a matrix [out,
// rest], such as a convolution's weight; with batch_convolutions a batch of matrices of its last
// two dims. `sections` splits the rows of each: q, k and v of a fused projection, or heads.
#ifndef APOGEE_OPTIM_ORTHOGONAL_MATRICES_H_
#define APOGEE_OPTIM_ORTHOGONAL_MATRICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/optim/step/step.h"

namespace apogee::optim {

enum class DecayKind;

struct MatrixPart {
  int64_t first_row;  // of all matrices one below the other
  int64_t rows, cols;
  // The matrix, a view of the parameter's flat tensor.
  Tensor Of(const Tensor& flat) const {
    return flat.Slice(0, first_row * cols, rows * cols).View({rows, cols});
  }
};
std::vector<MatrixPart> MatricesIn(const Shape& shape, const std::vector<int64_t>& sections,
                                   bool batch_convolutions);
// Rows of the matrices before they are split into sections. The shape has at least two dims.
int64_t RowsOf(const Shape& shape, bool batch_convolutions);

// The first `numel` elements.
Tensor Flat(const Tensor& tensor, int64_t numel);
// This rank's elements of `whole`, the flat parameter.
Tensor OwnOf(const ParamView& view, const Tensor& whole);
// w -= lr * update, with `update` as OwnOf returns it, and before or after it w -= decay * w.
void ApplyUpdate(const ActiveParam& param, const Tensor& update, double lr, double decay,
                 DecayKind kind);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ORTHOGONAL_MATRICES_H_
