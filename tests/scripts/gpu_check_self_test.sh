#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/gpu_check.sh on a bundle whose programs are shell scripts: they pass, fail, crash, hang, ignore signals,
# print no JSON, and so on. Each must give the right row, log and exit status, within the time limits.
#
#   tests/scripts/gpu_check_self_test.sh
set -euo pipefail
source_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failures=0

# expect WHAT COMMAND...: counts a failure when the command fails.
expect() {
  if ! "${@:2}"; then
    echo "FAILED: $1"
    failures=$((failures + 1))
  fi
}

# program FILE TEXT: an executable bash script.
program() {
  mkdir -p "$(dirname "$1")"
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"
  chmod +x "$1"
}

bundle="$work/bundle"
mkdir -p "$bundle"/{bin,tests,bench} "$work/path"
cp -r "$source_root/scripts" "$bundle/scripts"
echo "commit 0123" >"$bundle/VERSION"
program "$work/path/nvidia-smi" 'echo "a \"GPU\", 580, 1 MiB"'
export PATH="$work/path:$PATH"
program "$bundle/bin/gpu_bench" 'case "$1" in
  smoke) echo "{\"bench\": \"smoke\", \"device\": \"fake\"}" ;;
  steps) echo "{\"bench\": \"step\", \"optimizer\": \"sgd\", \"ms\": 2, \"share\": 0.9}"; printf "{\"cut" ;;
  kernels) echo "nothing to see" ;;
  gpt) if [[ "${2:-}" == --graphed ]]; then echo "{\"bench\": \"gpt\"}"; exec sleep 60; fi; echo "no GPU"; exit 77 ;;
esac'
cat >"$bundle/bench/pytorch_gpu.py" <<'PY'
import sys
if sys.argv[1] != "steps":
    sys.exit(77)
print('{"bench": "step", "optimizer": "sgd", "ms": 4}')
PY
program "$bundle/bin/apogee" 'echo "$@"'
program "$bundle/tests/good" 'echo "$APOGEE_TEST_DEVICE $*"; echo "[  PASSED  ] 3 tests."'
program "$bundle/tests/bad" 'echo "expected \"1\\2\", got 3"; exit 1'
program "$bundle/tests/crash" 'echo "before"; kill -SEGV $$'
program "$bundle/tests/hang" 'trap "" TERM; echo "hangs"; while :; do sleep 0.2; done'
program "$bundle/tests/empty" 'echo "[  PASSED  ] 0 tests."'
tests() {  # tests LINE...: the tests of the bundle
  printf '%s\n' "$@" >"$bundle/tests/device_tests.txt"
}

# run STATUS ARGUMENT...: runs gpu_check.sh, which must exit with STATUS.
run() {
  local status=0
  "$bundle/scripts/gpu_check.sh" --out "$work/out" "${@:2}" >"$work/printed" 2>&1 || status=$?
  if grep "are no rows" "$work/printed"; then failures=$((failures + 1)); fi
  if ((status != $1)); then
    cat "$work/printed"
    echo "FAILED: gpu_check.sh ${*:2}: exit status $status, expected $1"
    failures=$((failures + 1))
  fi
}
# has CHECK VERDICT PATTERN: there is one such row, and its detail matches.
has() {
  local rows
  rows="$(grep -cE "\"check\": \"$1\", \"verdict\": \"$2\", .*\"detail\": $3" "$work/out/rows.jsonl")"
  ((rows == 1)) || grep "\"check\": \"$1\"" "$work/out/rows.jsonl" || true
  ((rows == 1))
}
no_row() { ! grep -q "\"check\": \"$1\"" "$work/out/rows.jsonl"; }

# Passing.
tests "tensor_one_test good --only-source=a.cc" "two_test good"
run 0 --phase smoke --phase tests
expect "the bundle's commit" has bundle found '"commit 0123"'
expect "the GPU" has GPU found '"a \\"GPU\\", 580'
expect "smoke" has smoke measured '.*fake'
expect "a test" has tensor_one_test passed '.*3 tests'
expect "its log" grep -q "cuda --only-source=a.cc --gtest_brief=1" "$work/out/logs/tests.tensor_one_test.log"
expect "the log's command" grep -q "^\$ env APOGEE_TEST_DEVICE=cuda .*/tests/good" "$work/out/logs/tests.two_test.log"

# Each way to fail.
tests "bad_test bad" "crash_test crash" "hang_test hang" "empty_test empty" "missing_test nowhere" "good_test good"
SECONDS=0
run 1 --phase tests --check-limit 1
expect "the time of a hang that ignores signals: $SECONDS s" test "$SECONDS" -le 20
expect "exit status 1" has bad_test FAILED '"exit status 1: expected \\"1\\\\2\\", got 3"}$'
expect "a crash" has crash_test FAILED '"died of signal 11 \(SEGV\): before'
expect "a hang" has hang_test FAILED '"ended after 1 s: hangs'
expect "its log" grep -q hangs "$work/out/logs/tests.hang_test.log"
expect "no tests" has empty_test skipped '.*0 tests'
expect "no program" has missing_test FAILED '"not found'
expect "the others" has good_test passed ""
expect "the table" grep -q "^FAILED: crash_test: died" "$work/out/table.txt"
run 1 --phase smoke --phase verify --golden "$work" --continue
expect "--continue goes on after a failed test" has "recorded trajectories" passed '.*'

# Numbers: rows come as they are printed; a cut line is none.
run 1 --phase bench --check-limit 2
expect "a number" has steps measured '.*"share": 0.9'
expect "PyTorch's" has "steps, PyTorch" measured '.*"ms": 4'
expect "both in the table" grep -q "step sgd; 2 ms; 0.90 of the rate.*ms: 2.00 x PyTorch" "$work/out/table.txt"
expect "no JSON" has kernels FAILED '"no line of JSON: nothing to see'
expect "exit status 77" has gpt skipped '"no GPU'
expect "what was measured before a hang" has "gpt --graphed" measured '.*gpt'
expect "the hang" has "gpt --graphed" FAILED '"ended after 2 s'

# --limit, and --continue.
tests "good_test good" "hang_test hang" "late_test good"
SECONDS=0
run 3 --phase tests --jobs 1 --limit 4
expect "the end by --limit: $SECONDS s" test "$SECONDS" -le 20
expect "what was cut off" has hang_test "cut off" '"ended after . s'
expect "what did not begin" has late_test "cut off" '"not begun within --limit 4'
program "$bundle/tests/hang" 'echo "runs now"'
program "$bundle/tests/good" 'echo "$0"'
run 0 --phase tests --continue
expect "no test again" has good_test passed '.*3 tests'
expect "the rest" has late_test passed '.*/tests/good'
expect "what was cut off, again" has hang_test passed '"runs now'

# Interrupted.
program "$bundle/tests/hang" 'exec sleep 60'
tests "good_test good" "hang_test hang"
timeout 5 "$bundle/scripts/gpu_check.sh" --out "$work/out" --phase tests >"$work/printed" 2>&1 || true
expect "the table of an interrupted run" grep -q "1 passed or measured, 0 failed, 0 skipped, 1 cut off" "$work/printed"
# Of an interrupted benchmark there are numbers, and it runs again.
row='{"phase": "smoke", "check": "smoke", "verdict": "measured", "at_s": 0, "log": "", "detail": {"old": 1}}'
echo "$row" >"$work/out/rows.jsonl"
run 0 --phase smoke --continue
expect "an interrupted benchmark, again" has smoke passed '"1 numbers"'
expect "without its old numbers" bash -c '! grep -q old "$1"' - "$work/out/rows.jsonl"

# Skipped phases, and a smoke test that fails.
tests "tensor_one_test good" "nn_test good"
run 0 --phase nccl --phase verify --golden "$work"
expect "one GPU" has "groups over NCCL" skipped '"needs 2 GPUs, this machine has 1'
expect "trajectories" has "recorded trajectories" passed '"verify --device cuda'
program "$work/path/compute-sanitizer" '[[ "$2" != racecheck ]] || { echo "refused"; exit 1; }; exec "${@:5}"'
run 0 --phase sanitizer
expect "a tool that is refused" has racecheck skipped '.*does not run here, exit status 1: refused'
expect "the other tools" test "$(grep -c '"tensor_one_test", "verdict": "passed"' "$work/out/rows.jsonl")" == 3
expect "kernel tests only" no_row nn_test
rm "$bundle/tests/device_tests.txt"
run 3 --phase tests
expect "no tests in the bundle" has tests skipped '.*second archive'
program "$bundle/bin/gpu_bench" 'echo "no driver"; exit 1'
run 1
expect "smoke failed" has smoke FAILED '.*no driver'
expect "nothing else" has "what follows" skipped '.*smoke'

# Misuse.
for bad in "--phase x" "--limit 0" "--limit" "--jobs x" "more"; do
  read -ra words <<<"$bad"
  run 2 "${words[@]}"
done
run 0 --help
expect "--help" grep -q -- "--check-limit" "$work/printed"

echo "gpu_check self test: $failures failures"
((failures == 0))
