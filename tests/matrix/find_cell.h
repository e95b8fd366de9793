// SPDX-License-Identifier: Apache-2.0

// The library's cells of the matrix, and one of them by its name.
#ifndef APOGEE_TESTS_MATRIX_FIND_CELL_H_
#define APOGEE_TESTS_MATRIX_FIND_CELL_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "apogee/matrix/matrix.h"

namespace apogee::matrix {

// There are many cells: their list is made once.
inline const std::vector<Cell>& Cells() {
  static const std::vector<Cell> cells = AllCells();
  return cells;
}

inline const Cell& FindCell(const std::string& name) {
  static const std::unordered_map<std::string, const Cell*> by_name = [] {
    std::unordered_map<std::string, const Cell*> map;
    for (const Cell& cell : Cells()) map.emplace(cell.name(), &cell);
    return map;
  }();
  const auto found = by_name.find(name);
  if (found == by_name.end()) Throw("no cell is named ", name);
  return *found->second;
}

}  // namespace apogee::matrix

#endif  // APOGEE_TESTS_MATRIX_FIND_CELL_H_
