#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the tests: breaks the library on purpose, one small change at a time, and expects a test to fail.
#
#   tools/mutate.sh                       # all mutants
#   tools/mutate.sh --only PATTERN        # PATTERN: a regular expression on the mutants' names
#   tools/mutate.sh --shard I/N           # every N-th mutant, beginning with the I-th (1 <= I <= N)
#   tools/mutate.sh --list                # only prints the names of the mutants that would run
#   tools/mutate.sh --check               # only checks that all mutants still apply
#
# --only, --shard and --list can be combined: --only selects names, and --shard takes its part of these, in
# sorted order. So the shards 1/N to N/N run every mutant exactly once, on N machines or one after the other.
#
# Works on a copy of the tree, which it builds once. For each mutant it then rebuilds and runs only the tests
# that the mutant names. Prints `KILLED name (test)` or `SURVIVED name` per mutant. Prints `BROKEN name` for a
# mutant that no longer applies or does not compile. The last line is `N passed, M failed`: killed mutants
# passed, all others failed. With a warm compiler cache the whole run takes minutes.
#
# A mutant is a file tools/mutants/NAME.mutant:
#
#   One line that describes the fault.
#   file: optim/adam/adam.cc
#   tests: ^optim_update_test$            a regular expression on ctest's names
#   old:
#   whole lines, which must occur exactly once in the file
#   new:
#   the lines that replace them; if there are none, the old lines are deleted
#
# Uses the build of scripts/test.sh. Mutants whose names begin with cuda_ or nccl_ need CUDA's headers, because they
# run on the GPU in software (docs/gpu/emulated.md). The tests of those that begin with cuda_race_ run while it looks for races.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
export LC_ALL=C

only=""
shard=""
index=1 of=1  # of --shard
list=0
check=0
usage() {
  echo "usage: tools/mutate.sh [--only PATTERN] [--shard I/N] [--list] | --check" >&2
  exit 2
}
while (($# > 0)); do
  case "$1" in
    --only)
      (($# >= 2)) || usage
      only="$2"
      # The status of a match against a bad pattern is 2.
      [[ "" =~ $only ]] 2>/dev/null || (($? != 2)) || {
        echo "mutate: --only '$only' is not a regular expression; escape characters such as ( [ * with \\" >&2
        exit 2
      }
      shift 2
      ;;
    --shard)
      (($# >= 2)) || usage
      shard="$2"
      # At most six digits, so that the arithmetic below cannot wrap around.
      [[ "$shard" =~ ^0*([1-9][0-9]{0,5})/0*([1-9][0-9]{0,5})$ ]] &&
        index="${BASH_REMATCH[1]}" of="${BASH_REMATCH[2]}" && ((index <= of)) || {
        echo "mutate: --shard '$shard' is not I/N with 1 <= I <= N; the second of four shards is --shard 2/4" >&2
        exit 2
      }
      shift 2
      ;;
    --list)
      list=1
      shift
      ;;
    --check)
      (($# == 1)) && [[ -z "$only$shard" ]] && ((!list)) || usage
      check=1
      shift
      ;;
    *) usage ;;
  esac
done

# load FILE: sets file, tests, old and new. The two texts begin and end with a line break, so that they
# match whole lines only.
load() {
  local line part=head
  file="" tests="" old=$'\n' new=$'\n'
  while IFS= read -r line; do
    if [[ "$line" == "old:" || "$line" == "new:" ]]; then
      part="${line%:}"
    elif [[ "$part" == old ]]; then
      old+="$line"$'\n'
    elif [[ "$part" == new ]]; then
      new+="$line"$'\n'
    elif [[ "$line" == "file: "* ]]; then
      file="${line#file: }"
    elif [[ "$line" == "tests: "* ]]; then
      tests="${line#tests: }"
    fi
  done <"$1"
  [[ -n "$file" && -n "$tests" && "$part" == new && "$old" != $'\n' ]]
}

# apply FILE: replaces `old` by `new`. Unless `old` is there exactly once, fails and leaves the file unchanged.
apply() {
  local text rest
  text=$'\n'"$(cat "$1" && echo .)"  # the dot keeps the line breaks at the end
  text="${text%.}"
  rest="${text//"$old"/}"
  ((${#text} - ${#rest} == ${#old})) || return 1
  text="${text/"$old"/"$new"}"
  printf '%s' "${text#$'\n'}" >"$1"
}

# The ctest names that a regular expression selects, and the programs that these entries run.
tests_of() {
  ctest --test-dir "$build" -N -R "$1" | sed -n 's/^ *Test *#[0-9]*: //p'
}
targets_of() {
  tests_of "$1" | while read -r name; do
    awk -v name="$name" '$1 == name { program = $2 } END { print program == "" ? name : program }' \
      "$build/test_programs.txt"
  done | sort -u
}

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if ((check)); then
  passed=0
  failed=0
  for path in "$ROOT"/tools/mutants/*.mutant; do
    if load "$path" && cp "$ROOT/$file" "$work/file" 2>/dev/null && apply "$work/file"; then
      passed=$((passed + 1))
    else
      echo "BROKEN $(basename "$path" .mutant) (its old text is not in '$file' exactly once)"
      failed=$((failed + 1))
    fi
  done
  echo "$passed passed, $failed failed"
  exit $((failed > 0))
fi

# The names of the mutants that run: the glob is sorted, and --shard takes every N-th of those that --only leaves.
names=()
for path in "$ROOT"/tools/mutants/*.mutant; do
  name="$(basename "$path" .mutant)"
  [[ -z "$only" || "$name" =~ $only ]] && names+=("$name")
done
if ((${#names[@]} == 0)); then
  echo "mutate: no mutant's name matches '$only'; --list prints all names" >&2
  exit 2
fi
chosen=()
for ((i = index - 1; i < ${#names[@]}; i += of)); do chosen+=("${names[i]}"); done
if ((${#chosen[@]} == 0)); then
  echo "mutate: --shard $shard is empty: there are ${#names[@]} mutants; use at most /${#names[@]}" >&2
  exit 2
fi
if ((list)); then
  printf '%s\n' "${chosen[@]}"
  exit 0
fi

build="$work/source/build/test"

mkdir "$work/source"
tar -C "$ROOT" --exclude=./build --exclude=./out --exclude=./.git -cf - . | tar -C "$work/source" -xf -
mutants=()
cuda=OFF
[[ -f "${CUDA_HOME:-/usr/local/cuda}/include/cuda_runtime.h" ]] && cuda=EMULATED
for name in "${chosen[@]}"; do
  mutants+=("$work/source/tools/mutants/$name.mutant")
  [[ "$name" =~ ^(cuda|nccl)_ ]] && cuda=EMULATED
done

# The build of scripts/test.sh, so that both share the entries of the compiler cache.
cmake -S "$work/source" --preset test -DAPOGEE_BUILD_BENCH=OFF -DAPOGEE_WITH_CUDA=$cuda \
  >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for path in "${mutants[@]}"; do
  load "$path" && tests_of "$tests"
done | sort -u >"$work/tests" || true
mapfile -t names <"$work/tests"
all="^($(IFS='|'; echo "${names[*]}"))\$"
mapfile -t targets < <(targets_of "$all")
if ((${#targets[@]} == 0)); then
  echo "mutate: the mutants name no test" >&2
  exit 1
fi
cmake --build "$build" -j "$JOBS" --target "${targets[@]}" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
ctest --test-dir "$build" -j "$JOBS" --output-on-failure -R "$all" >"$work/log" 2>&1 || {
  cat "$work/log"
  echo "mutate: the tests must pass before anything is broken"
  exit 1
}

passed=0
failed=0
for path in "${mutants[@]}"; do
  name="$(basename "$path" .mutant)"
  verdict=""
  if ! load "$path"; then
    verdict="BROKEN $name (needs file:, tests:, old: and new:)"
  elif [[ ! -f "$work/source/$file" ]] || ! cp "$work/source/$file" "$work/original"; then
    verdict="BROKEN $name (there is no $file)"
  elif mapfile -t targets < <(targets_of "$tests") && ((${#targets[@]} == 0)); then
    verdict="BROKEN $name (no test matches $tests)"
  elif ! apply "$work/source/$file"; then
    verdict="BROKEN $name (its old text is not in $file exactly once)"
  else
    if ! cmake --build "$build" -j "$JOBS" --target "${targets[@]}" >"$work/log" 2>&1; then
      verdict="BROKEN $name (does not compile: $(grep -m 1 -oE 'error: .*' "$work/log" || tail -n 1 "$work/log"))"
    elif APOGEE_EMULATED_GPU_RACES=$([[ "$name" == cuda_race_* ]] && echo 1 || echo 0) \
      ctest --test-dir "$build" -R "$tests" >"$work/log" 2>&1; then
      verdict="SURVIVED $name"
    else
      # The first failed case; a crash or a time-out has none and is named by its program.
      log="$build/Testing/Temporary/LastTest.log"
      killer="$(sed -n 's/^\[  FAILED  \] \([^ ,]*\).* ms)$/\1/p' "$log" | head -n 1)"
      [[ -n "$killer" ]] || killer="$(sed -n '1s/^[0-9]*://p' "${log%.log}sFailed.log")"
      verdict="KILLED $name ($killer)"
      passed=$((passed + 1))
    fi
    cp "$work/original" "$work/source/$file"  # newer than what was built from the mutant
  fi
  [[ "$verdict" == KILLED* ]] || failed=$((failed + 1))
  echo "$verdict"
done

echo "mutate: $SECONDS s"
echo "$passed passed, $failed failed"
((failed == 0))
