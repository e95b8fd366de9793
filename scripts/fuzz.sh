#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes every parser of untrusted text, with AddressSanitizer and UndefinedBehaviorSanitizer:
#
#   scripts/fuzz.sh [SECONDS [PARSER...]]    # time for each parser (default: 60 s); default: all parsers
#   scripts/fuzz.sh --full [PARSER...]       # 40 million inputs for safetensors_header, 10 million for each other
#
# Needs clang-14 and libclang-rt-14-dev. Starts from tests/fuzz/seeds and keeps new inputs in
# build/fuzz/corpus. An input that fails is stored in build/fuzz/crashes. Prints a line per parser, and as
# its last line `N passed, M failed`. Every fuzzer is built, the ones that do not run as well: one that no
# longer links is found by the commit that broke it.
amount="${1:-60}"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ "$amount" == --full || "$amount" =~ ^[1-9][0-9]*$ ]] || { echo "usage: scripts/fuzz.sh [SECONDS | --full] [PARSER...]" >&2; exit 2; }
shift || true

build="$ROOT/build/fuzz"
log="$build/log.$$"
mkdir -p "$build/crashes"
(($# > 0)) || set -- $(ls "$ROOT/tests/fuzz/seeds")
for name in "$@"; do
  [[ -d "$ROOT/tests/fuzz/seeds/$name" ]] || { echo "there is no parser $name; parsers: $(ls "$ROOT/tests/fuzz/seeds" | tr '\n' ' ')" >&2; exit 2; }
done

{
  cmake -S "$ROOT" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++-14 \
    -DAPOGEE_BUILD_FUZZERS=ON -DAPOGEE_BUILD_EXAMPLES=OFF -DAPOGEE_BUILD_TOOLS=OFF -DAPOGEE_PCH=OFF \
    -DAPOGEE_WITH_OPENMP=OFF -DAPOGEE_WITH_ONEDNN=OFF -DAPOGEE_WITH_CUDA=OFF &&
    cmake --build "$build" -j "$JOBS" --target fuzzers
} >"$log" 2>&1 || { cat "$log"; exit 1; }

# fuzz PARSER: a line that ends in "no failure" or has FAILED.
fuzz() {
  local name="$1" limit="-max_total_time=$amount" max_len=4096 own_log="$log.$1"
  mkdir -p "$build/corpus/$name"
  if [[ "$amount" == --full ]]; then
    max_len=512  # several times as many inputs in the same time
    [[ "$name" == safetensors_header ]] && limit=-runs=40000000 || limit=-runs=10000000
  fi
  if "$build/tests/fuzz/fuzz_$name" "$limit" -timeout=10 -rss_limit_mb=512 -max_len="$max_len" \
    -artifact_prefix="$build/crashes/$name-" "$build/corpus/$name" "$ROOT/tests/fuzz/seeds/$name" >"$own_log" 2>&1; then
    echo "$name: $(grep -oE 'Done [0-9]+ runs in [0-9]+ second' "$own_log" | tail -n 1), no failure"
  else
    tail -n 40 "$own_log"
    echo "$name: FAILED, see $build/crashes"
  fi
  rm -f "$own_log"
}
export -f fuzz
export ROOT build log amount
printf '%s\n' "$@" | xargs -P "$JOBS" -I{} bash -c 'fuzz {}' | tee "$log"
passed="$(grep -c 'no failure$' "$log" || true)"
failed=$(($# - passed))
rm -f "$log"
echo "$passed passed, $failed failed"
((failed == 0))
