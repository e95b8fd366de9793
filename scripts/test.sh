#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every check that a change must pass: dependencies, build, tests (including the layering), installation
# and a consumer project, format. Works from any folder, on a fresh clone, without a terminal.
#
#   scripts/test.sh [--sanitizers]
#
# --sanitizers also runs the tests under AddressSanitizer and UndefinedBehaviorSanitizer, and those of
# label `threads` under ThreadSanitizer. The last line is `N passed, M failed, K skipped`.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

sanitizers=0
for arg in "$@"; do
  case "$arg" in
    --sanitizers) sanitizers=1 ;;
    *)
      echo "usage: scripts/test.sh [--sanitizers]" >&2
      exit 2
      ;;
  esac
done

passed=0
failed=0
skipped=0
report() {
  print_phases
  echo "$passed passed, $failed failed, $skipped skipped"
}

# check NAME COMMAND...: runs the command and counts it as passed or failed.
check() {
  phase "$1"
  if "${@:2}"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $1"
  fi
}

# need NAME COMMAND...: runs the command. If it fails, counts a failure, prints the report and ends the script.
need() {
  phase "$1"
  "${@:2}" && return
  failed=$((failed + 1))
  echo "FAILED: $1"
  report
  exit 1
}

# run_tests BUILD [ctest arguments]: adds the counts of one ctest run to ours.
run_tests() {
  local line ran
  phase "tests ($1)"
  ran="$(mktemp)"
  # A failing run has counted its failures; a run of zero tests has none to count.
  scripts/run_ctest.sh "build/$1" "${@:2}" | tee "$ran" || true
  line="$(tail -n 1 "$ran")"
  rm -f "$ran"
  if [[ "$line" =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2] + (BASH_REMATCH[1] == 0 && BASH_REMATCH[2] == 0 ? 1 : 0)))
    skipped=$((skipped + BASH_REMATCH[3]))
  else
    failed=$((failed + 1))
  fi
}

# No kernel that nvcc compiles runs here. Without its later optimisations this takes half the time.
nvcc="${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"
if [[ -x "$nvcc" && "$("$nvcc" --help)" == *--Ofast-compile* ]]; then
  export CUDAFLAGS="--Ofast-compile=max"
fi

need "dependencies" scripts/install_deps.sh quickstart test bench mpi
need "configure" cmake --preset release -DAPOGEE_BUILD_BENCH=ON
need "build" cmake --build --preset release -j "$JOBS"
run_tests release
# The CUDA kernels on a GPU in software (docs/gpu.md). It takes CUDA's headers.
if [[ -f "${CUDA_HOME:-/usr/local/cuda}/include/cuda_runtime.h" ]]; then
  need "build (emulated GPU)" bash -c "scripts/install_deps.sh cuda && cmake --preset cuda-emulated &&
    cmake --build --preset cuda-emulated -j $JOBS --target device_tests"
  run_tests cuda-emulated -L cuda
else
  echo "[  SKIPPED ] the emulated GPU: no CUDA headers"
  skipped=$((skipped + 1))
fi
check "install and consumer" scripts/check_install.sh
check "format" scripts/format.sh --check
check "fuzz, 20 seconds a parser" bash -c "scripts/install_deps.sh fuzz && scripts/fuzz.sh 20"

if ((sanitizers)); then
  need "build (asan)" bash -c "cmake --preset asan && cmake --build --preset asan -j $JOBS"
  run_tests asan
  need "build (tsan)" bash -c "cmake --preset tsan && cmake --build --preset tsan -j $JOBS"
  run_tests tsan -L threads
fi

report
((failed == 0 && passed > 0))
