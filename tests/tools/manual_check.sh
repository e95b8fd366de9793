#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# That the files which `cmake --install` takes from the program are complete, and that real shells and man read them:
#
#   tests/tools/manual_check.sh PROGRAM        # bin/apogee of a build
#
# Shells and man that are not installed are left out.
set -euo pipefail
program="$1"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"
cmake -DPROGRAM="$program" -DOUTPUT="$work/manual" -P "$root/tools/help/manual.cmake"

failed=0
wrong() {
  echo "manual_check: $*"
  failed=1
}

# One page for each command that --help lists.
pages=1
page_of() {
  pages=$((pages + 1))
  [[ -s "manual/man/man1/apogee-$1.1" ]] || wrong "apogee-$1.1 is missing"
}
subcommands() { "$program" "$@" --help | awk '/^Subcommands:/ { list = 1; next } list && /^  [a-z]/ { print $1 }'; }
for command in $(subcommands); do
  page_of "$command"
  [[ "$command" == data ]] || continue
  for part in $(subcommands data); do page_of "data-$part"; done
done
found="$(find manual/man -name '*.1' | wc -l)"
((found == pages && pages > 20)) || wrong "$found man pages for $pages commands"
if command -v man >/dev/null && command -v groff >/dev/null; then
  for page in manual/man/man1/*.1; do
    text="$(MANWIDTH=100 LC_ALL=C man --warnings=w -l "$page" 2>&1)"
    [[ "$text" == *OPTIONS* && "$text" != *warning* ]] || wrong "man does not read $page: ${text::300}"
  done
fi

bash -n manual/bash-completion/completions/apogee || wrong "bash does not read its file"
[[ "$(head -n 1 manual/zsh/site-functions/_apogee)" == "#compdef apogee" ]] || wrong "_apogee does not begin with #compdef"
! command -v zsh >/dev/null || zsh -n manual/zsh/site-functions/_apogee || wrong "zsh does not read its file"
! command -v fish >/dev/null || fish --no-config --no-execute manual/fish/vendor_completions.d/apogee.fish ||
  wrong "fish does not read its file"

((failed == 0)) && echo "manual_check: $pages man pages, 3 completion scripts"
exit "$failed"
