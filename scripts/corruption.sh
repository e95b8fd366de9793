#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Damages checkpoints at random places, and manifests at every byte and every length. All damage must be
# detected:
#
#   scripts/corruption.sh [DAMAGES]        # default: 10000; a tenth as many are resumed behind
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

[[ -f build/release/build.ninja ]] || cmake --preset release >/dev/null
tests=(checkpoint_corruption_test booster_resume_damaged_test)
cmake --build build/release --target "${tests[@]}" -j "$JOBS" >/dev/null
export APOGEE_CORRUPTIONS="${1:-10000}" OMP_WAIT_POLICY=passive
for test in "${tests[@]}"; do "build/release/tests/$test" --gtest_brief=1; done
