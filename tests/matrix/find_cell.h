// SPDX-License-Identifier: Apache-2.0

// A cell of the matrix by its name.
#ifndef APOGEE_TESTS_MATRIX_FIND_CELL_H_
#define APOGEE_TESTS_MATRIX_FIND_CELL_H_

#include <string>

#include "apogee/matrix/matrix.h"

namespace apogee::matrix {

inline Cell FindCell(const std::string& name) {
  for (const Cell& cell : AllCells()) {
    if (cell.name() == name) return cell;
  }
  Throw("no cell is named ", name);
}

}  // namespace apogee::matrix

#endif  // APOGEE_TESTS_MATRIX_FIND_CELL_H_
