#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lets one rank fail in every way and in every collective. Ranks are threads, processes under mpirun, and
# processes under `apogee run`. The others must report the rank and the call in time. Then all must end and
# leave nothing behind.
#
#   scripts/fault_trials.sh [--sample N] [--backend threads|mpi|tcp] [--only REGEX] [--timeout SECONDS]
#
# All trials take about 8 minutes. Prints a line for each trial, the messages of those that failed, a table,
# and as its last line `N trials, N hangs, N wrong, N late`. Fails unless the last three numbers are 0.
#
# The measured time is from the fault to the end of the last rank's process, without mpirun's own start and
# clean-up.
#
#   late   The time is more than one second above the time-out.
#   hang   The trial has not ended after 30 s. It is killed.
#   wrong  A survivor's message lacks the rank at fault, the call or its number (both calls, if ranks call
#          different ones). Or the exit code is not in docs/launch.md. Or a process, shared memory or a
#          temporary file is left.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

[[ -f build/release/build.ninja ]] || cmake --preset release >/dev/null
cmake --build build/release --target comm_fault_trials -j "$JOBS" >/dev/null
build/release/tests/comm_fault_trials "$@"
