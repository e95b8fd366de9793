#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks this machine's GPU with the programs of scripts/gpu_bundle.sh:
#
#   FOLDER/scripts/gpu_check.sh [--out FOLDER] [--phase PHASE]... [--limit SECONDS] [--check-limit SECONDS]
#                               [--continue] [--jobs N] [--quick] [--golden FOLDER]
#
# Phases, in this order (default: all of them):
#   smoke      10 s: the driver, cuBLASLt, one kernel, one product. If it fails, nothing else runs
#   tests      the device tests
#   bench      the benchmarks, with PyTorch's times if python3 has PyTorch
#   matrix     the matrix on cuda with 1, 2 and 4 ranks on one GPU
#   nccl       processes with a GPU each (as many as there are GPUs), over NCCL, under `apogee run`
#   verify     recorded trajectories in the folder that --golden names
#   memcheck, racecheck, synccheck, initcheck
#              compute-sanitizer's tools on the kernel tests, if compute-sanitizer runs here
#   sanitizer  these four
#
#   --out          where rows.jsonl (a row a check, written when it ends), table.txt and logs/ go (gpu_check)
#   --limit        seconds for all: the run ends by then (540). Checks that have not begun are `cut off`, as are
#                  running ones. Run further calls with --phase or --continue
#   --check-limit  seconds for one check, after which it fails (240)
#   --continue     leaves out checks that have ended in an earlier run with the same --out
#   --jobs         number of tests that share the GPU (half the cores, at most 8); benchmarks run alone
#   --quick        a small sample of the matrix, short benchmarks
#
# Exit status: 0 everything that ran passed; 1 a check failed; 2 wrong arguments; 3 none failed, but some were cut
# off, or none ran. A skipped check has a row with the reason; it changes no exit status.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$here/scripts/gpu_check_rows.sh"
out=gpu_check
quick=0
continued=0
golden=""
limit=540
check_limit=240
jobs=$((($(nproc) + 1) / 2))
((jobs <= 8)) || jobs=8
phases=()
SECONDS=0

usage() { sed -n '3,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

# value FLAG VALUE PATTERN: ends the script unless VALUE matches PATTERN.
value() {
  if [[ ! "${2:-}" =~ ^($3)$ ]]; then
    echo "gpu_check: $1 is '${2:-}', expected $3" >&2
    exit 2
  fi
}

while (($#)); do
  case "$1" in
    --help) usage; exit 0 ;;
    --quick) quick=1 ;;
    --continue) continued=1 ;;
    --phase)
      value "$1" "${2:-}" 'smoke|tests|bench|matrix|nccl|verify|memcheck|racecheck|synccheck|initcheck|sanitizer'
      if [[ "$2" == sanitizer ]]; then phases+=(memcheck racecheck synccheck initcheck); else phases+=("$2"); fi
      shift
      ;;
    --jobs) value "$1" "${2:-}" '[1-9][0-9]*'; jobs="$2"; shift ;;
    --limit) value "$1" "${2:-}" '[1-9][0-9]*'; limit="$2"; shift ;;
    --check-limit) value "$1" "${2:-}" '[1-9][0-9]*'; check_limit="$2"; shift ;;
    --golden) value "$1" "${2:-}" '.+'; golden="$2"; shift ;;
    --out) value "$1" "${2:-}" '.+'; out="$2"; shift ;;
    *) echo "gpu_check: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
((${#phases[@]})) || phases=(smoke tests bench matrix nccl verify memcheck racecheck synccheck initcheck)
if ! mkdir -p "$out/logs" || ! touch "$out/rows.jsonl"; then
  echo "gpu_check: cannot write into --out '$out'" >&2
  exit 2
fi
if ((continued)); then keep_ended; else : >"$out/rows.jsonl"; fi

# cuBLASLt and NCCL may be in the nvidia packages of a Python installation. Find them even if that is not an
# active environment.
if [[ -z "${VIRTUAL_ENV:-}" ]] && command -v python3 >/dev/null; then
  VIRTUAL_ENV="$(python3 -c 'import sys; print(sys.prefix)')"
  export VIRTUAL_ENV
fi

phase_smoke() {
  local check_limit=$((check_limit < 60 ? check_limit : 60))
  numbers "smoke" "$here/bin/gpu_bench" smoke
}

# each_test PATTERN FUNCTION: calls FUNCTION NAME COMMAND... for the tests whose name matches.
each_test() {
  local name program arguments
  if [[ ! -f "$here/tests/device_tests.txt" ]]; then
    row "$phase_name" skipped "no tests here; unpack the bundle's second archive, NAME-tests.tar.xz"
    return
  fi
  while read -r name program arguments; do
    # The arguments are words.
    # shellcheck disable=SC2086
    [[ ! "$name" =~ $1 ]] || "$2" "$name" "$here/tests/$program" $arguments --gtest_brief=1
  done <"$here/tests/device_tests.txt"
  wait
}

device_test() { beside "$1" env APOGEE_TEST_DEVICE=cuda "${@:2}"; }
phase_tests() { each_test . device_test; }

clocks() {
  command -v nvidia-smi >/dev/null || return 0
  check "clocks $1" nvidia-smi --format=csv,noheader \
    --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu
}

# Eager and graphed steps are processes of their own, so that the peak memory of one is not the other's.
phase_bench() {
  local small=() section
  ((quick)) && small=(--quick)
  clocks before
  for section in steps kernels gpt "gpt --graphed"; do
    # shellcheck disable=SC2086
    numbers "$section" "$here/bin/gpu_bench" $section "${small[@]}"
    # shellcheck disable=SC2086
    numbers "$section, PyTorch" python3 "$here/bench/pytorch_gpu.py" $section "${small[@]}"
  done
  clocks after
}

# Worlds of 1, 2 and 4 ranks each have cells of their own.
phase_matrix() {
  local sample=$((quick ? 20 : 600)) optimizers
  for optimizers in a-b c-k l-r s-z; do
    beside "matrix on cuda, [$optimizers]*" "$here/bin/apogee" matrix --device cuda --sample $((sample / 4)) \
      --only "[$optimizers]*"
  done
  wait
}

# NCCL allows one rank per GPU. With a single GPU, the one process only shows that `apogee run` works here.
phase_nccl() {
  local gpus=0 processes=("$here/bin/apogee" run -n) sample=$((quick ? 20 : 150)) test
  command -v nvidia-smi >/dev/null && gpus="$(nvidia-smi --query-gpu=uuid --format=csv,noheader | wc -l)"
  check "one process of apogee run on cuda" "${processes[@]}" 1 "$here/bin/apogee" matrix --device cuda --comm nccl \
    --sample 4 --only "*/world1/*"
  if ((gpus < 2)); then
    row "groups over NCCL" skipped "needs 2 GPUs, this machine has $gpus"
    return
  fi
  for test in comm_collectives_test comm_failures_test; do
    if [[ ! -x "$here/tests/$test" ]]; then
      row "$test over NCCL" skipped "no tests here; unpack the bundle's second archive"
    elif ((gpus < 4)) && [[ "$test" == *failures* ]]; then
      row "$test over NCCL" skipped "needs 4 GPUs, this machine has $gpus"
    else
      check "$test over NCCL" env APOGEE_TEST_DEVICE=cuda "${processes[@]}" "$gpus" "$here/tests/$test" \
        --gtest_brief=1
    fi
  done
  check "matrix over NCCL, $gpus processes" "${processes[@]}" "$gpus" "$here/bin/apogee" matrix --device cuda \
    --comm nccl --sample "$sample"
}

phase_verify() {
  if [[ -n "$golden" ]]; then
    check "recorded trajectories" "$here/bin/apogee" verify --device cuda "$golden"
  else
    row "recorded trajectories" skipped "no --golden"
  fi
}

# Whether the tool runs here at all: drivers in containers may refuse it. If not, adds a row.
sanitizer_runs() {
  local log seconds ends status=0
  if ! command -v compute-sanitizer >/dev/null; then
    row "$phase_name" skipped "compute-sanitizer not found"
    return 1
  fi
  log="$(log_of probe)"
  seconds="$(seconds_left)"
  if ((seconds <= 0)); then
    row "$phase_name" "cut off" "not begun within --limit $limit"
    return 1
  fi
  start compute-sanitizer --tool "$phase_name" --error-exitcode 1 "$here/bin/gpu_bench" smoke
  { wait "$pid" || status=$?; } 2>/dev/null
  ((status == 0)) && return 0
  row "$phase_name" skipped "compute-sanitizer does not run here, exit status $status: $(last_line "$log")" "$log"
  return 1
}

sanitized_test() {
  beside "$1" env APOGEE_TEST_DEVICE=cuda compute-sanitizer --tool "$phase_name" --error-exitcode 1 "${@:2}"
}
sanitize() { ! sanitizer_runs || each_test '^tensor_|^optim_.*kernels|^optim_device_decision' sanitized_test; }
phase_memcheck() { sanitize; }
phase_racecheck() { sanitize; }
phase_synccheck() { sanitize; }
phase_initcheck() { sanitize; }

# Also if the run is interrupted: the table of the rows that there are.
finish() {
  trap - EXIT TERM INT
  local status=0 running
  if ((${1:-0})); then
    running="$(jobs -rp)"
    # shellcheck disable=SC2086
    [[ -z "$running" ]] || kill $running 2>/dev/null
    row "gpu_check.sh" "cut off" "interrupted"
  fi
  if command -v python3 >/dev/null; then
    python3 "$here/scripts/gpu_table.py" "$out/rows.jsonl" >"$out/table.txt" 2>&1
    cat "$out/table.txt"
  fi
  echo "$(count passed measured) passed or measured, $(count FAILED) failed, $(count skipped) skipped," \
    "$(count "cut off") cut off, $SECONDS s; rows and logs: $out"
  if (($(count FAILED))); then
    status=1
  elif (($(count "cut off"))) || ! (($(count passed measured))); then
    status=3
  fi
  exit "$status"
}
trap 'finish 1' TERM INT
trap 'finish 1' EXIT

phase_name=machine
if [[ -f "$here/VERSION" ]]; then row "bundle" found "$(<"$here/VERSION")"; fi
if command -v nvidia-smi >/dev/null; then
  nvidia-smi -q </dev/null >"$out/logs/nvidia-smi.log" 2>&1
  row "GPU" found "$(timeout -k 1 20 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader |
    head -n 1)" logs/nvidia-smi.log
else
  row "GPU" skipped "no nvidia-smi"
fi
for phase_name in "${phases[@]}"; do
  "phase_$phase_name"
  if [[ "$phase_name" == smoke ]] && grep -q '^{"phase": "smoke", .*"verdict": "FAILED", "at_s"' "$out/rows.jsonl"; then
    row "what follows" skipped "the smoke test failed"
    break
  fi
done
finish
