#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures what users and maintainers have to read, now and at another commit:
#
#   scripts/surface.sh [COMMIT]
#
#   public headers       named in HDRS of the layers, so installed (not those in CUDA_HDRS, for nvcc only)
#   booster.h            lines after preprocessing
#   code                 lines without blank ones and comments, in the library, examples and tools
#   files, lines         most source files in one folder; most lines of a source
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Of the tree at $1.
measure() {
  cd "$1"
  local include="$1/.surface/apogee" folders=() folder
  mkdir -p "$include"
  for folder in */; do
    folder="${folder%/}"
    case "$folder" in bench | build | cmake | docs | out | scripts | tests) continue ;; esac
    folders+=("$folder")
    ln -s "$1/$folder" "$include/$folder"
  done
  local headers
  headers=$(find "${folders[@]}" -name CMakeLists.txt -exec awk '
    /^ *HDRS/ { inside = 1 } /^ *(DEPS|SRCS|CUDA_HDRS|[A-Z]+_LIBS)|\)/ { if (!/^ *HDRS/) inside = 0 }
    inside { for (i = 1; i <= NF; ++i) if ($i ~ /\.h$/) print }' {} + | wc -l)
  local preprocessed
  preprocessed=$("${CXX:-g++}" -std=c++20 -E -I.surface booster/booster.h | wc -l)
  local code
  code=$(find "${folders[@]}" -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | grep -v '^tools/mutants/' |
    xargs cat | grep -cvE '^\s*(//.*)?$')
  printf '%-28s %10d %12d %10d\n' "$2" "$headers" "$preprocessed" "$code"
}

printf '%-28s %10s %12s %10s\n' "" "headers" "booster.h" "code"
mkdir "$work/now"
git -C "$ROOT" ls-files -z --cached --others --exclude-standard | (cd "$ROOT" && xargs -0 ls -d 2>/dev/null || true) |
  tar -C "$ROOT" -T - -cf - | tar -C "$work/now" -xf -
if [[ $# -gt 0 ]]; then
  mkdir "$work/then"
  git -C "$ROOT" archive "$1" | tar -C "$work/then" -xf -
  measure "$work/then" "$1"
fi
measure "$work/now" "this tree"
