#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every cell of the two checkpoint matrices. ctest runs only a part of them.
#
#   resumes bit for bit: optimizer x layout (1 to 4 ranks) x f64, f32, bf16, fp16 x accumulation 1, 3
#   any layout to any layout: optimizer x layout x layout, states and weights equal byte for byte
#
# Passes its arguments to the test program (--gtest_filter='*ResumesBitForBit').
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

[[ -f build/release/build.ninja ]] || cmake --preset release >/dev/null
cmake --build build/release --target booster_training_state_test -j "$JOBS" >/dev/null
APOGEE_ALL_CELLS=1 build/release/tests/booster_training_state_test "$@"
