#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Chooses a tenth of some names by the commit, for checks that are too slow to run in full with every change:
#
#   ls tools/mutants | scripts/tenth.sh               # prints every tenth name, in sorted order
#   ls tools/mutants | scripts/tenth.sh --of 4        # a quarter
#   scripts/tenth.sh --commit main~3 <names           # as that commit chose; default: HEAD
#
# or, in a script: source scripts/tenth.sh; mapfile -t chosen < <(printf '%s\n' "${names[@]}" | tenth)
#
# The same commit always chooses the same names. Ten commits that follow each other on a branch choose every
# name once, as long as the names stay the same; merged commits count as one, their merge. Fewer names than
# tenths leave some commits without a name: then nothing is printed.
#
# The tenth follows from the commit's number: the number of commits in the history of first parents. It grows
# by one with each change. (With digits of the hash, all tenths would take some 30 commits.) A shallow clone
# does not have that history, so there the hash decides, which is as even in the long run. Without git (sources
# from an archive) the number is 0.
[[ -n "${ROOT:-}" ]] || source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# commit_number COMMIT: the number described above.
commit_number() {
  local hash
  # `git -C` also finds a repository that only contains this folder somewhere; that one is not ours.
  if [[ ! -e "$ROOT/.git" ]] || ! command -v git >/dev/null; then
    echo 0
    return
  fi
  hash="$(git -C "$ROOT" rev-parse --verify --quiet "$1^{commit}")" || {
    echo "tenth: '$1' is no commit of $ROOT; git log lists them" >&2
    return 2
  }
  if [[ "$(git -C "$ROOT" rev-parse --is-shallow-repository)" == true ]]; then
    echo $((16#${hash:0:12}))
  else
    git -C "$ROOT" rev-list --count --first-parent "$hash"
  fi
}

# tenth [--of N] [--commit COMMIT]: reads names, one per line, and prints those that are chosen.
tenth() {
  local of=10 commit=HEAD number
  while (($# > 0)); do
    case "$1" in
      --of) of="${2:-}" ;;
      --commit) commit="${2:-}" ;;
      *) of="" ;;
    esac
    if (($# < 2)) || [[ ! "$of" =~ ^[1-9][0-9]{0,5}$ || -z "$commit" ]]; then
      echo "usage: scripts/tenth.sh [--of N] [--commit COMMIT] <NAMES    (N: a whole number from 1)" >&2
      return 2
    fi
    shift 2
  done
  number="$(commit_number "$commit")" || return
  LC_ALL=C sort -u | awk -v number=$((number % of)) -v of="$of" '(NR - 1 + number) % of == 0'
}

[[ "${BASH_SOURCE[0]}" != "$0" ]] || tenth "$@"
