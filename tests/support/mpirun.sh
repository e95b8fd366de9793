#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program on so many processes of this machine, whatever the number of its cores, as any user:
#
#   mpirun.sh MPIRUN PROCESSES PROGRAM [ARGUMENTS]
mpirun="$1"
processes="$2"
shift 2
options=()
# Open MPI refuses more processes than cores, and root, unless told. Its words are none of MPICH's.
if "$mpirun" --version | grep -qE 'Open MPI|OpenRTE'; then
  options=(--oversubscribe --allow-run-as-root --bind-to none --mca orte_abort_print_stack 0)
fi
exec "$mpirun" "${options[@]}" -np "$processes" "$@"
