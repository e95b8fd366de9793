#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks for races in the CUDA kernels (docs/gpu/emulated.md): builds the tests that run on the GPU in software, and runs them
# while every access of a kernel to memory is noted.
#
#   scripts/check_races.sh               # a tenth of the tests, others with each commit (scripts/tenth.sh)
#   scripts/check_races.sh --all
#   scripts/check_races.sh PATTERN       # a regular expression on ctest's names
#
# Works in build/test, the build of scripts/test.sh. A test in which a race shows fails, and its output has a line
# "cuda emulation: race in KERNEL". The last line is `N passed, M failed, K skipped`.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"
(($# <= 1)) || { echo "usage: scripts/check_races.sh [--all | PATTERN]" >&2; exit 2; }

cmake --preset test -DAPOGEE_EMULATED_RACES=ON >/dev/null
build build/test --target device_tests
pattern='^(tensor|optim|comm|autograd|nn)_'
case "${1:-}" in
  --all) ;;
  "")
    mapfile -t names < <(ctest --test-dir build/test -N -L cuda -R "$pattern" | sed -n 's/^ *Test *#[0-9]*: //p' |
      scripts/tenth.sh)
    pattern="^($(IFS='|'; echo "${names[*]}"))\$"
    ;;
  *) pattern="$1" ;;
esac
APOGEE_EMULATED_GPU_RACES=1 scripts/run_ctest.sh build/test -L cuda -R "$pattern"
