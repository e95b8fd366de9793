#!/usr/bin/env bash
# Checks this machine's GPU with what scripts/gpu_bundle.sh brought here, and prints one table:
#
#   FOLDER/scripts/gpu_check.sh [--quick] [--golden FOLDER] [--report FILE.json]
#
# The device tests; the matrix on cuda with 1, 2 and 4 ranks on one GPU; recorded trajectories, where --golden
# names them; compute-sanitizer on the kernel tests, where it is found; the benchmarks, beside PyTorch's where
# python3 has it. --quick leaves benchmarks out and takes a small sample of the matrix. Exit status 1 when a check
# failed. What could not be asked is in the table as skipped, with the reason.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
quick=0
golden=""
report="gpu_check.json"
while (($#)); do
  case "$1" in
    --quick) quick=1 ;;
    --golden) golden="$2"; shift ;;
    --report) report="$2"; shift ;;
    *)
      echo "usage: gpu_check.sh [--quick] [--golden FOLDER] [--report FILE.json]" >&2
      exit 2
      ;;
  esac
  shift
done
lines="$(mktemp)"
log="$(mktemp)"
trap 'rm -f "$lines" "$log"' EXIT

# row NAME VERDICT DETAIL: one line of the table.
row() {
  printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$lines"
  printf '%-44s %-8s %s\n' "$1" "$2" "$3"
}

# check NAME COMMAND...: passed when it exits with 0; the detail is its last line.
check() {
  local name="$1" verdict=passed
  timeout 900 "${@:2}" >"$log" 2>&1 || verdict="FAILED"
  # A test program that ran nothing has passed nothing.
  [[ $verdict == passed ]] && grep -q '^\[  PASSED  \] 0 tests' "$log" && verdict=skipped
  row "$name" "$verdict" "$(tail -n 1 "$log")"
  [[ $verdict != FAILED ]] || tail -n 20 "$log"
}

# numbers NAME COMMAND...: JSON lines go into the report; exit status 77 is a skip.
numbers() {
  local name="$1" status=0
  timeout 1800 "${@:2}" >"$log" 2>&1 || status=$?
  if ((status == 77)); then
    row "$name" skipped "$(tail -n 1 "$log")"
  elif ((status)) || ! grep -q '^{' "$log"; then
    row "$name" FAILED "$(tail -n 1 "$log")"
  else
    grep '^{' "$log" | while IFS= read -r line; do row "$name" measured "$line"; done
  fi
}

if command -v nvidia-smi >/dev/null; then
  row "GPU" found "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)"
else
  row "GPU" skipped "no nvidia-smi"
fi
for test in "$here"/tests/*; do
  APOGEE_TEST_DEVICE=cuda check "$(basename "$test")" "$test" --gtest_brief=1
done
sample=$((quick ? 20 : 600))
check "matrix on cuda, $sample cells" "$here/bin/apogee" matrix --device cuda --sample "$sample"
if [[ -n "$golden" ]]; then
  check "recorded trajectories" "$here/bin/apogee" verify --device cuda "$golden"
else
  row "recorded trajectories" skipped "no --golden"
fi
if command -v compute-sanitizer >/dev/null; then
  for test in "$here"/tests/tensor_* "$here"/tests/optim_*kernels*; do
    [[ -x "$test" ]] || continue
    APOGEE_TEST_DEVICE=cuda check "memcheck $(basename "$test")" \
      compute-sanitizer --error-exitcode 1 "$test" --gtest_brief=1
  done
else
  row "compute-sanitizer" skipped "not found"
fi
if ((!quick)); then
  for section in steps products gpt; do
    numbers "$section" "$here/bin/gpu_bench" "$section"
    numbers "$section, PyTorch" python3 "$here/bench/pytorch_gpu.py" "$section"
  done
fi
python3 "$here/scripts/gpu_table.py" "$lines" "$report" || exit 1
! cut -f 2 "$lines" | grep -q FAILED
