#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs ctest and counts the tests that really ran: one per GoogleTest case, one per ctest entry of another kind.
#
#   scripts/run_ctest.sh build/release [ctest arguments]
#
# Prints the names of skipped cases, and as its last line `N passed, M failed, K skipped`. Fails if a test
# failed or if no test passed, because a run of zero tests proves nothing.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build="$1"
shift
log="$build/Testing/Temporary/LastTest.log"
rm -f "$log"
status=0
ctest --test-dir "$build" -j "$JOBS" --output-on-failure "$@" || status=$?
[[ -f "$log" ]] || log=/dev/null

awk -v status="$status" '
  function end_entry(ok) {
    if (cases == 0) { if (ok) passed++; else failed++ }
    # A crash or a time-out ends a program before its summary.
    else if (!ok && entry_failed == 0) failed++
  }
  / Testing: / { cases = 0; entry_failed = 0; not_run = 0 }
  /^Command: ""$/ { not_run = 1 }  # the program was not built; ctest logs it as passed
  /^\[       OK \] / { passed++; cases++ }
  /^\[  SKIPPED \] .*\([0-9]+ ms\)$/ { skipped++; cases++; names = names "   " $4 "\n" }
  /^\[  FAILED  \] .*\([0-9]+ ms\)$/ { failed++; cases++; entry_failed++ }
  /^Test Passed\.$/ { end_entry(!not_run) }
  /^Test Failed\.$/ { end_entry(0) }
  END {
    if (skipped > 0) printf "skipped:\n%s", names
    if (status != 0 && failed == 0) failed = 1
    if (passed == 0) print "no test ran and passed"
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit (status != 0 || failed > 0 || passed == 0)
  }' "$log"
