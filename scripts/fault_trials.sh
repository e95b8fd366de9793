#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One rank misbehaves, in every way, in every collective, among threads and among processes under mpirun and under
# `apogee run`: the
# others must learn in time which it was, and in which call; then all must end and leave nothing behind.
#
#   scripts/fault_trials.sh [--sample N] [--backend threads|mpi|tcp] [--only REGEX] [--timeout SECONDS]
#
# All trials take about 8 minutes. Prints a line for each, what was said in those that failed, a table, and
# as its last line `N trials, N hangs, N wrong, N late`; fails unless the latter are 0.
#
# Measured is the time from the fault to the end of the last rank's process, in which mpirun's own start and
# clean-up are not contained. Late: more than one second behind the time-out. A hang: 30 s from the start, then
# everything is killed. Wrong: a survivor is not told the rank that misbehaved, the call and its number (both
# calls, where ranks disagree), the exit code is none that docs/launch.md has, or a process, shared memory or
# a temporary file is left.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

[[ -f build/release/build.ninja ]] || cmake --preset release >/dev/null
cmake --build build/release --target comm_fault_trials -j "$JOBS" >/dev/null
build/release/tests/comm_fault_trials "$@"
