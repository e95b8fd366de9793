#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every cell of the matrix and writes docs/compatibility.md from the outcome. Fails when a cell does;
# the document then says which.
#
#   scripts/matrix_full.sh
#
# Every cell's numbers are in out/matrix/cells.json, the lines in out/matrix/cells.txt.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

phase "build"
cmake --preset native
cmake --build --preset native --target apogee_command -j "$JOBS"

phase "matrix"
mkdir -p out/matrix
status=0
OMP_WAIT_POLICY=passive build/native/bin/apogee matrix --json out/matrix/cells.json \
  --markdown out/matrix/tables.md >out/matrix/cells.txt || status=$?
# 1: cells failed, which is worth writing down; anything else: there is nothing to write.
((status <= 1)) || exit "$status"

phase "docs/compatibility.md"
{
  sed -n '1,/^<!-- generated below -->$/p' docs/compatibility.md
  echo
  echo "Written by \`scripts/matrix_full.sh\` on $(date -u +%Y-%m-%d), at $(git rev-parse --short HEAD):" \
    "$(tail -n 1 out/matrix/cells.txt)."
  echo
  cat out/matrix/tables.md
} >out/matrix/compatibility.md
cp out/matrix/compatibility.md docs/compatibility.md

print_phases
tail -n 1 out/matrix/cells.txt
exit "$status"
