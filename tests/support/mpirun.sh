#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program as several processes of this machine, also as root and on machines with fewer
# cores:
#
#   mpirun.sh MPIRUN PROCESSES PROGRAM [ARGUMENTS]
mpirun="$1"
processes="$2"
shift 2
options=()
# By default Open MPI refuses more processes than cores, and to run as root. MPICH lacks its
# options.
if "$mpirun" --version | grep -qE 'Open MPI|OpenRTE'; then
  options=(--oversubscribe --allow-run-as-root --bind-to none --mca orte_abort_print_stack 0)
fi
# Open MPI never frees some of its memory. Leaks of our code are found where the same ranks are threads.
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
exec "$mpirun" "${options[@]}" -np "$processes" "$@"
