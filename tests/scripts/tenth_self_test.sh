#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/tenth.sh in a small repository: ten commits choose every name once, and so on.
set -euo pipefail
source_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failures=0

if ! command -v git >/dev/null; then
  echo "[  SKIPPED ] tenth_self_test (0 ms)"  # counted by scripts/run_ctest.sh
  exit 0
fi
# Neither the user's settings nor a repository around this one.
export GIT_CONFIG_NOSYSTEM=1 HOME="$work" GIT_CEILING_DIRECTORIES="$work"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
for role in AUTHOR COMMITTER; do export "GIT_${role}_NAME=Test" "GIT_${role}_EMAIL=test@localhost"; done

# check WHAT COMMAND...: counts a failure when the command fails.
check() {
  if ! "${@:2}"; then
    echo "FAILED: $1"
    failures=$((failures + 1))
  fi
}
exits_with() {
  local status=0
  "${@:2}" >/dev/null 2>&1 || status=$?
  ((status == $1))
}

repository="$work/repository"
mkdir -p "$repository/scripts"
cp "$source_root/scripts/tenth.sh" "$source_root/scripts/common.sh" "$repository/scripts/"
git -C "$repository" init -q
commit() { git -C "$repository" commit -q --allow-empty -m "$1"; }
git -C "$repository" add .
for number in {1..6}; do commit "$number"; done
# A merge of three commits counts as one change.
main="$(git -C "$repository" symbolic-ref --short HEAD)"
git -C "$repository" checkout -q -b side
for number in {1..3}; do commit "side $number"; done
git -C "$repository" checkout -q "$main"
git -C "$repository" merge -q --no-ff -m merge side
for number in {7..12}; do commit "$number"; done

names="$(seq 1 37)"
choose() { "$repository/scripts/tenth.sh" "$@" <<<"$names"; }
over() {  # over N COMMITS: all names that so many commits choose, sorted as numbers
  local back
  for ((back = 0; back < $2; ++back)); do choose --of "$1" --commit "HEAD~$back"; done | sort -n
}
check "ten commits choose every name once" test "$(over 10 10)" == "$names"
check "nine commits do not" test "$(over 10 9)" != "$names"
check "three commits choose every third" test "$(over 3 3)" == "$names"
check "all of one" test "$(choose --of 1 | sort -n)" == "$names"
check "the same commit, the same names" test "$(choose)" == "$(choose --commit HEAD)"
check "the order of the input does not matter" \
  test "$(choose)" == "$(tac <<<"$names" | "$repository/scripts/tenth.sh")"
check "no names" test -z "$(names="" && "$repository/scripts/tenth.sh" </dev/null)"
check "sourced, as run" \
  test "$(choose)" == "$(bash -c 'source "$0/scripts/tenth.sh"; tenth' "$repository" <<<"$names")"

for bad in "--of 0" "--of x" "--of" "--commit" "names" "--of 3 more"; do
  read -ra words <<<"$bad"
  check "misuse: $bad" exits_with 2 choose "${words[@]}"
done
check "no such commit" exits_with 2 choose --commit nowhere

git clone -q --depth 1 "file://$repository" "$work/shallow"
check "a shallow clone chooses three or four of 37" \
  grep -qxE '3|4' <<<"$("$work/shallow/scripts/tenth.sh" <<<"$names" | wc -l)"
mkdir "$work/archive"
cp -r "$repository/scripts" "$work/archive/"
check "sources without git choose the first" \
  test "$("$work/archive/scripts/tenth.sh" <<<"$names" | head -n 1)" == 1

echo "tenth self test: $failures failures"
((failures == 0))
