#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every check that a change must pass: dependencies, build, tests (including the layering), installation
# and a consumer project, format, the site, some of the fuzzing. Works from any folder, on a fresh clone, without a terminal.
#
#   scripts/test.sh [--all]
#
# The tests run in a unity build, with the CUDA kernels on a GPU in software (preset `test`). A third of these runs,
# another one for each commit: the cells of the matrix's sample, and large suites that repeat with processes as ranks,
# or on that GPU, what they ran with threads on the CPU. Commits also take turns with these (scripts/tenth.sh):
#
#   1st  the library is installed and used; every parser is fuzzed for ten seconds
#   2nd  a twentieth of the sources is compiled without its group, a tenth of the kernels' tests looks for races,
#        registers and spills of half of the kernels' sources are compared with a table
#   3rd  the library is installed with CUDA kernels, if nvcc is found, and by turns with shared libraries
#
# --all does all of this in full; and the other tests; the whole suite under AddressSanitizer with
# UndefinedBehaviorSanitizer and, but for the ranks under MPI, under ThreadSanitizer; all mutants; the whole matrix;
# and a minute of fuzzing for every parser. It takes hours.
# The last line is `N passed, M failed, K skipped`.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$ROOT/scripts/tenth.sh"
cd "$ROOT"

all=0
for arg in "$@"; do
  case "$arg" in
    --all) all=1 ;;
    *)
      echo "usage: scripts/test.sh [--all]" >&2
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

# check NAME COMMAND...: runs the command and counts it as passed or failed, or as skipped if it exits with 77.
check() {
  local status=0
  phase "$1"
  "${@:2}" || status=$?
  case "$status" in
    0) passed=$((passed + 1)) ;;
    77)
      skipped=$((skipped + 1))
      echo "[  SKIPPED ] $1"
      ;;
    *)
      failed=$((failed + 1))
      echo "FAILED: $1"
      ;;
  esac
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

number="$(commit_number HEAD)"
# has_turn N: whether the checks of the N-th commit of three run.
has_turn() { ((all || number % 3 == $1 - 1)); }

# No kernel that nvcc compiles runs here. Without its later optimisations this takes half the time.
nvcc="${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"
if [[ -x "$nvcc" && "$("$nvcc" --help)" == *--Ofast-compile* ]]; then
  export CUDAFLAGS="--Ofast-compile=max"
fi

need "dependencies" scripts/install_deps.sh quickstart test bench mpi
# The site's packages are no part of the library: a machine that cannot have them skips the site.
site=0
scripts/install_deps.sh docs && site=1
cuda=OFF
if [[ -f "${CUDA_HOME:-/usr/local/cuda}/include/cuda_runtime.h" ]]; then
  cuda=EMULATED
  need "dependencies (CUDA)" scripts/install_deps.sh cuda
else
  echo "[  SKIPPED ] the CUDA kernels: no CUDA headers"
  skipped=$((skipped + 1))
fi
# Kernels that tell their accesses take half as long again.
races=OFF
if has_turn 2; then races=ON; fi
need "configure" cmake --preset test -DAPOGEE_WITH_CUDA=$cuda -DAPOGEE_EMULATED_RACES=$races
need "build" build build/test
((all)) || export APOGEE_TEST_SHARD=$((number % 3 + 1))/3
run_tests test
unset APOGEE_TEST_SHARD
if has_turn 1 || has_turn 3; then
  install=()
  has_turn 3 || install+=(--no-cuda)
  if has_turn 3 && ((number / 3 % 2)); then install+=(--shared); fi
  check "install and consumer" scripts/check_install.sh "${install[@]}"
fi
check "format" scripts/format.sh --check
if ((site)); then
  check "site" scripts/docs.sh --build build/test
else
  echo "[  SKIPPED ] the site: mkdocs, mkdocs-material and doxygen are not installable"
  skipped=$((skipped + 1))
fi
if has_turn 2; then
  mapfile -t every < <(((all)) && echo --all)
  check "sources by themselves" scripts/check_sources.sh "${every[@]}"
  if [[ "$cuda" == EMULATED ]]; then check "races of kernels" scripts/check_races.sh "${every[@]}"; fi
  check "registers and spills of kernels" scripts/check_kernels.sh "${every[@]}"
fi
if has_turn 1; then
  need "dependencies (fuzz)" scripts/install_deps.sh fuzz
  check "fuzz" scripts/fuzz.sh $((all ? 60 : 10))
fi

if ((all)); then
  for sanitizer in asan tsan; do
    need "configure ($sanitizer)" cmake --preset "$sanitizer"
    need "build ($sanitizer)" build "build/$sanitizer"
    # ThreadSanitizer does not see inside Open MPI, and reports its locks. The same ranks run as threads.
    if [[ "$sanitizer" == tsan ]]; then run_tests tsan -LE mpi; else run_tests asan; fi
  done
  check "mutants" tools/mutate.sh
  check "the whole matrix" env OMP_WAIT_POLICY=passive build/test/bin/apogee matrix
fi

report
((failed == 0 && passed > 0))
