#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Counts the files through which a parameter goes, from boost to the gathered value, under each plugin.
#
#   scripts/walk.sh            # prints the table, and writes it into docs/architecture/files.md
#   scripts/walk.sh --list     # prints the files, too
#
# Records the calls of two training steps of 01_train_gpt with callgrind, inside Booster::boost, Booster::backward
# and Optimizer::step. Lists the sources in which code ran there: those of plugins/ and chunk/, booster/booster.*,
# autograd/parameter*, and optim/param_view.*. A header and its source count once. Needs valgrind. The build has
# line tables, in build/walk.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"
list=0
[[ "${1:-}" == "--list" ]] && list=1
command -v valgrind >/dev/null || {
  echo "walk: valgrind was not found; apt-get install valgrind" >&2
  exit 1
}

cmake -S . -B build/walk -G Ninja -DCMAKE_BUILD_TYPE=Release -DAPOGEE_BUILD_TESTS=OFF -DAPOGEE_BUILD_BENCH=OFF \
  -DAPOGEE_BUILD_TOOLS=OFF -DAPOGEE_BUILD_EXAMPLES=ON -DAPOGEE_WITH_CUDA=OFF -DAPOGEE_UNITY=ON \
  "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g1 -DNDEBUG" >/dev/null
build build/walk --target 01_train_gpt
program="$(find build/walk/examples -type f -name 01_train_gpt | head -n 1)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
seq 2000 >"$work/text"

# files NAME FLAG...: the files of a run, one a line, without extensions.
files() {
  local toggles=()
  for function in 'apogee::Booster::boost(*' 'apogee::Booster::backward(*' 'apogee::optim::Optimizer::step(*'; do
    toggles+=("--toggle-collect=$function")
  done
  # With the wait policy set, the program does not start itself again.
  OMP_WAIT_POLICY=passive valgrind --tool=callgrind --compress-strings=no "${toggles[@]}" \
    --callgrind-out-file="$work/$1.out" "$program" --data "$work/text" --layers 1 --heads 2 --dim 8 --block 8 \
    --batch 2 --steps 2 --sample 0 --threads 2 "${@:2}" >"$work/$1.log" 2>&1 || {
    cat "$work/$1.log" >&2
    exit 1
  }
  grep -ohE '^(fl|fi|fe)=.*' "$work/$1.out" | grep -oE '(plugins|chunk|booster|autograd|optim)/[a-z0-9_/]*\.(h|cc)$' |
    sed -E 's/\.(h|cc)$//' | sort -u | grep -E '^(plugins/|chunk/|booster/booster$|autograd/parameter|optim/param_view$)'
}

rows=()
run() {
  local found
  found="$(files "$@")"
  rows+=("| ${*:2} | $(wc -l <<<"$found") |")
  ((list)) && printf '== %s\n%s\n' "$1" "$found"
  return 0
}
run ddp --ranks 2 --plugin ddp
run zero1 --ranks 2 --plugin zero1
run zero2 --ranks 2 --plugin zero2
run gemini --ranks 2 --plugin gemini
run hybrid --ranks 4 --plugin hybrid --tp-size 2 --zero-stage 2

{
  echo "<!-- begin: scripts/walk.sh -->"
  echo "| 01_train_gpt | files |"
  echo "|---|---|"
  printf '%s\n' "${rows[@]}"
  echo "<!-- end: scripts/walk.sh -->"
} >"$work/table"
cat "$work/table"
sed -i -e "/<!-- begin: scripts\/walk.sh -->/,/<!-- end: scripts\/walk.sh -->/{/<!-- end/r $work/table
d}" docs/architecture/files.md
