#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills training runs at random moments and checks that no checkpoint that was said to be saved is lost.
# Arguments go to the program, for instance: scripts/kill_storm.sh --kills 1000 --ranks 4
# (--ranks 1 to 4: one layout, and losses must be those of a run that nobody killed; 0: changing layouts;
# --saves sync, async or both)
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

[[ -f build/release/build.ninja ]] || cmake --preset release >/dev/null
cmake --build build/release --target kill_storm -j "$JOBS" >/dev/null
build/release/tests/kill_storm --program build/release/examples/01_train_gpt/01_train_gpt "$@"
