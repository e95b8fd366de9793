#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats every C++ file of the repository in place; `--check` only lists the files that need it, and the
# comments that a re-flow has damaged (scripts/check_comments.sh), and fails if there are any.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

tool="$(command -v clang-format-14 || command -v clang-format)" || {
  echo "format: clang-format was not found; run scripts/install_deps.sh test" >&2
  exit 1
}
# Every folder of sources, so that a new one cannot be forgotten; not what a build has made.
mapfile -d '' files < <(git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh' | sort -z)

if [[ "${1:-}" == "--check" ]]; then
  failed=0
  report="$("$tool" --dry-run -Werror "${files[@]}" 2>&1)" || {
    grep -oE '^[a-z][^: ]*\.(h|cc|cu|cuh):' <<<"$report" | sort | uniq -c
    echo "format: the files above need scripts/format.sh"
    failed=1
  }
  scripts/check_comments.sh "${files[@]}" || {
    echo "format: the comments above need a repair by hand; clang-format leaves comments as they are"
    failed=1
  }
  ((failed == 0)) || exit 1
  echo "format: ${#files[@]} files are formatted"
else
  "$tool" -i "${files[@]}"
fi
