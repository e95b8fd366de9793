#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks for races in the CUDA kernels (docs/gpu.md): builds the tests that run on the GPU in software, and runs them
# while every access of a kernel to memory is noted.
#
#   scripts/check_races.sh [PATTERN]     # PATTERN: a regular expression on ctest's names; default: all kernels' tests
#
# Works in build/test, the build of scripts/test.sh. A test in which a race shows fails, and its output has a line
# "cuda emulation: race in KERNEL". The last line is `N passed, M failed, K skipped`.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"
(($# <= 1)) || { echo "usage: scripts/check_races.sh [PATTERN]" >&2; exit 2; }

[[ -f build/test/build.ninja ]] || cmake --preset test >/dev/null
build build/test --target device_tests
APOGEE_EMULATED_GPU_RACES=1 scripts/run_ctest.sh build/test -L cuda -R "${1:-^(tensor|optim|comm|autograd|nn)_}"
