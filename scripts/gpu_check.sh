#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks this machine's GPU with the programs of scripts/gpu_bundle.sh, and prints one table:
#
#   FOLDER/scripts/gpu_check.sh [--phase PHASE]... [--quick] [--jobs N] [--limit SECONDS] [--golden FOLDER]
#                               [--report FILE.json]
#
# Phases, in this order (default: all of them):
#   tests      the device tests
#   bench      the benchmarks, with PyTorch's times if python3 has PyTorch
#   matrix     the matrix on cuda with 1, 2 and 4 ranks on one GPU
#   nccl       processes with a GPU each (as many as there are GPUs), over NCCL, under `apogee run`
#   verify     recorded trajectories in the folder that --golden names
#   sanitizer  compute-sanitizer on the kernel tests, if it is installed
#
#   --quick    leaves benchmarks out and runs a small sample of the matrix
#   --jobs     number of tests that share the GPU (default: half the cores, at most 8); benchmarks run alone
#   --limit    checks that have not begun after this time are skipped, and running ones get 60 s more, so that
#              the table is complete in time
#
# The table shows skipped checks, too, with the reason. Exit status 1 if a check failed.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
quick=0
golden=""
report="gpu_check.json"
limit=86400
jobs=$((($(nproc) + 1) / 2))
((jobs <= 8)) || jobs=8
phases=()

usage() {
  sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

# value FLAG VALUE PATTERN: ends the script unless VALUE matches PATTERN.
value() {
  if [[ ! "${2:-}" =~ ^($3)$ ]]; then
    echo "gpu_check: $1 is '${2:-}', expected $3" >&2
    exit 2
  fi
}

while (($#)); do
  case "$1" in
    --quick) quick=1 ;;
    --phase) value "$1" "${2:-}" 'tests|bench|matrix|nccl|verify|sanitizer'; phases+=("$2"); shift ;;
    --jobs) value "$1" "${2:-}" '[1-9][0-9]*'; jobs="$2"; shift ;;
    --limit) value "$1" "${2:-}" '[1-9][0-9]*'; limit="$2"; shift ;;
    --golden) value "$1" "${2:-}" '.+'; golden="$2"; shift ;;
    --report) value "$1" "${2:-}" '.+'; report="$2"; shift ;;
    *) usage ;;
  esac
  shift
done
((${#phases[@]})) || phases=(tests bench matrix nccl verify sanitizer)
lines="$(mktemp)"
logs="$(mktemp -d)"
trap 'rm -rf "$lines" "$logs"' EXIT

# cuBLASLt and NCCL may be in the nvidia packages of a Python installation. Find them even if that is not an
# active environment.
if [[ -z "${VIRTUAL_ENV:-}" ]] && command -v python3 >/dev/null; then
  VIRTUAL_ENV="$(python3 -c 'import sys; print(sys.prefix)')"
  export VIRTUAL_ENV
fi

# row NAME VERDICT DETAIL: one line of the table.
row() {
  printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$lines"
  printf '%-44s %-8s %s\n' "$1" "$2" "$3"
}

# time_is_up NAME: whether the time limit is over. If so, adds a row that says so for this check.
time_is_up() {
  ((SECONDS < limit)) && return 1
  row "$1" skipped "not begun within --limit $limit"
}

# seconds_for MOST: prints how many seconds a check may take: MOST, or less if the limit is near.
seconds_for() {
  local left=$((limit + 60 - SECONDS))
  echo $((left < $1 ? left : $1))
}

# check NAME COMMAND...: passes if the command exits with 0; the row's detail is its last line of output.
check() {
  local name="$1" verdict=passed log
  time_is_up "$name" && return
  log="$(mktemp -p "$logs")"
  timeout "$(seconds_for 900)" "${@:2}" >"$log" 2>&1 || verdict="FAILED"
  # A test program that ran no tests counts as skipped.
  [[ $verdict == passed ]] && grep -q '^\[  PASSED  \] 0 tests' "$log" && verdict=skipped
  row "$name" "$verdict" "$(tail -n 1 "$log")"
  [[ $verdict != FAILED ]] || tail -n 20 "$log"
}

# beside NAME COMMAND...: as check, but in the background, up to --jobs at a time.
beside() {
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  check "$@" &
}

# numbers NAME COMMAND...: adds the command's JSON lines to the report. Exit status 77: skipped.
numbers() {
  local name="$1" status=0 log="$logs/numbers"
  time_is_up "$name" && return
  timeout "$(seconds_for 1800)" "${@:2}" >"$log" 2>&1 || status=$?
  if ((status == 77)); then
    row "$name" skipped "$(tail -n 1 "$log")"
  elif ((status)) || ! grep -q '^{' "$log"; then
    row "$name" FAILED "$(tail -n 1 "$log")"
  else
    grep '^{' "$log" | while IFS= read -r line; do row "$name" measured "$line"; done
  fi
}

phase_tests() {
  for test in "$here"/tests/*; do
    beside "$(basename "$test")" env APOGEE_TEST_DEVICE=cuda "$test" --gtest_brief=1
  done
  wait
}

phase_bench() {
  if ((quick)); then
    row "benchmarks" skipped "--quick"
    return
  fi
  for section in steps products gpt; do
    numbers "$section" "$here/bin/gpu_bench" "$section"
    numbers "$section, PyTorch" python3 "$here/bench/pytorch_gpu.py" "$section"
  done
}

# Worlds of 1, 2 and 4 ranks each have cells of their own.
phase_matrix() {
  local sample=$((quick ? 20 : 600))
  for optimizers in a-b c-k l-r s-z; do
    beside "matrix on cuda, [$optimizers]*" "$here/bin/apogee" matrix --device cuda --sample $((sample / 4)) \
      --only "[$optimizers]*"
  done
  wait
}

# NCCL allows one rank per GPU. With a single GPU, the one process only shows that `apogee run` works here.
phase_nccl() {
  local gpus=0 processes=("$here/bin/apogee" run -n) sample=$((quick ? 20 : 150))
  command -v nvidia-smi >/dev/null && gpus="$(nvidia-smi --query-gpu=uuid --format=csv,noheader | wc -l)"
  check "one process of apogee run on cuda" "${processes[@]}" 1 "$here/bin/apogee" matrix --device cuda --comm nccl \
    --sample 4 --only "*/world1/*"
  if ((gpus < 2)); then
    row "groups over NCCL" skipped "needs 2 GPUs, this machine has $gpus"
    return
  fi
  for test in "$here"/tests_of_processes/*; do
    if ((gpus < 4)) && [[ "$test" == *failures* ]]; then
      row "$(basename "$test") over NCCL" skipped "needs 4 GPUs, this machine has $gpus"
      continue
    fi
    check "$(basename "$test") over NCCL" env APOGEE_TEST_DEVICE=cuda "${processes[@]}" "$gpus" "$test" \
      --gtest_brief=1
  done
  check "matrix over NCCL, $gpus processes" "${processes[@]}" "$gpus" "$here/bin/apogee" matrix --device cuda --comm nccl \
    --sample "$sample"
}

phase_verify() {
  if [[ -n "$golden" ]]; then
    check "recorded trajectories" "$here/bin/apogee" verify --device cuda "$golden"
  else
    row "recorded trajectories" skipped "no --golden"
  fi
}

phase_sanitizer() {
  if ! command -v compute-sanitizer >/dev/null; then
    row "compute-sanitizer" skipped "not found"
    return
  fi
  for test in "$here"/tests/tensor_* "$here"/tests/optim_*kernels* "$here"/tests/optim_device_decision_test; do
    [[ -x "$test" ]] || continue
    beside "memcheck $(basename "$test")" env APOGEE_TEST_DEVICE=cuda \
      compute-sanitizer --error-exitcode 1 "$test" --gtest_brief=1
  done
  wait
}

if command -v nvidia-smi >/dev/null; then
  row "GPU" found "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)"
else
  row "GPU" skipped "no nvidia-smi"
fi
for phase in "${phases[@]}"; do "phase_$phase"; done
python3 "$here/scripts/gpu_table.py" "$lines" "$report" || exit 1
! cut -f 2 "$lines" | grep -q FAILED
