#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program as several processes of this machine without MPI, with the arguments of mpirun.sh:
#
#   apogee_run.sh APOGEE PROCESSES PROGRAM [ARGUMENTS]
exec "$1" run -n "${@:2}"
