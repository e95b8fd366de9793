#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy over the given sources (default: all sources that build/debug compiles):
#
#   scripts/tidy.sh [optim/adam/adam.cc ...]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

tool="$(command -v clang-tidy-14 || command -v clang-tidy)" || {
  echo "tidy: clang-tidy was not found; run scripts/install_deps.sh tidy" >&2
  exit 1
}
[[ -f build/debug/compile_commands.json ]] || cmake --preset debug >/dev/null
if (($# > 0)); then
  files=("$@")
else
  mapfile -t files < <(grep -oE '"file": "[^"]+"' build/debug/compile_commands.json | cut -d'"' -f4 | sort -u)
fi
# Clang does not know every flag of g++.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$JOBS" \
  "$tool" -p build/debug --quiet --extra-arg=-Wno-unknown-warning-option \
  --extra-arg=-Wno-ignored-optimization-argument
