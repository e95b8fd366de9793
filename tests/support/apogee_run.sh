#!/usr/bin/env bash
# Runs a program on so many processes of this machine without MPI, in the form of mpirun.sh:
#
#   apogee_run.sh APOGEE PROCESSES PROGRAM [ARGUMENTS]
exec "$1" run -n "${@:2}"
