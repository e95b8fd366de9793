#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program on so many processes of this machine without MPI, in the form of mpirun.sh:
#
#   apogee_run.sh APOGEE PROCESSES PROGRAM [ARGUMENTS]
exec "$1" run -n "${@:2}"
