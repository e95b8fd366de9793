#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills training runs at random moments and checks that no acknowledged checkpoint is lost. Passes its
# arguments to the program:
#
#   scripts/kill_storm.sh --kills 1000 --ranks 4
#
#   --ranks  1 to 4: one layout, and losses must equal those of a run that was not killed
#            0: the layout changes from run to run
#   --saves  sync, async or both
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

[[ -f build/release/build.ninja ]] || cmake --preset release >/dev/null
cmake --build build/release --target kill_storm -j "$JOBS" >/dev/null
build/release/tests/kill_storm --program build/release/examples/01_train_gpt/01_train_gpt "$@"
