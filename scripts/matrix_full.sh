#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every cell of the matrix and writes docs/compatibility/cells.md from the results. Fails if a cell fails; the
# document then names the failed cells.
#
#   scripts/matrix_full.sh
#
# Writes every cell's numbers to out/matrix/cells.json, and the printed lines to out/matrix/cells.txt.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

phase "build"
cmake --preset native
cmake --build --preset native --target apogee_command -j "$JOBS"

phase "matrix"
mkdir -p out/matrix
status=0
OMP_WAIT_POLICY=passive build/native/bin/apogee matrix --jobs "$JOBS" --json out/matrix/cells.json \
  --markdown out/matrix/tables.md >out/matrix/cells.txt || status=$?
# Exit code 1: cells failed, and the document says which. Any other: there are no results to write.
((status <= 1)) || exit "$status"

phase "docs/compatibility/cells.md"
{
  echo "# Cells of the matrix"
  echo
  echo "Written by \`scripts/matrix_full.sh\` on $(date -u +%Y-%m-%d), at $(git rev-parse --short HEAD):" \
    "$(tail -n 1 out/matrix/cells.txt). [Compatibility](../compatibility.md) says what a cell"
  echo "is and what the columns are."
  echo
  cat out/matrix/tables.md
} >out/matrix/cells.md
cp out/matrix/cells.md docs/compatibility/cells.md

print_phases
tail -n 1 out/matrix/cells.txt
exit "$status"
