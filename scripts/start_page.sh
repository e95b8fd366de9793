#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the commands of docs/start.md in their order, in an empty Debian, and takes their time:
#
#   scripts/start_page.sh [--limit MINUTES] [--stop-before PATTERN] [--here] [--list]
#
# As root it makes the smallest Debian 12 (scripts/empty_debian.sh) and runs each command there, in a fresh clone of the
# last commit. Files that the page quotes are written into a folder of their own, in which the commands of that section
# then run. DIR stands for a folder.
#
#   --limit MINUTES        fail if the commands take longer in all; default: 12. To make the Debian does not count
#   --stop-before PATTERN  stop before the first command that this shell pattern fits: 'scripts/quickstart.sh --*' stops
#                          after the first training, 'scripts/install_deps.sh*' before the library is built
#   --here                 on this machine, in a temporary folder; leaves apt-get out
#   --list                 print the commands, and the folder of each, and stop
#
# A script that ran already is run again with 20 steps: the page shows its flags then, not a training.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

limit=12
stop_before=""
here=0
list=0
usage() {
  sed -n '/^#   scripts/s/^# *//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
while (($#)); do
  case "$1" in
    --limit | --stop-before)
      (($# > 1)) || usage
      if [[ "$1" == --limit ]]; then limit="$2"; else stop_before="$2"; fi
      shift
      ;;
    --here) here=1 ;;
    --list) list=1 ;;
    *) usage ;;
  esac
  shift
done
[[ "$limit" =~ ^[0-9]+$ ]] || usage

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/files"

# Lines `FOLDER <tab> COMMAND`; the quoted files go to $work/files. A group of indented lines is commands if its first one
# begins with a program; other groups are output.
awk -v files="$work/files" '
  /^## / { folder = "clone" }
  /^<!-- quotes / { name = $3; sub(/.*\//, "", name); next }
  /^```/ {
    if (fenced) { fenced = 0; if (name != "") close(files "/" name); name = "" }
    else { fenced = 1; if (name != "") folder = "project" }
    next
  }
  fenced { if (name != "") print > (files "/" name); next }
  /^[ \t]*$/ { blank = 1; group = ""; next }
  /^    / && (blank || group != "") {
    text = $0
    sub(/^ +/, "", text)
    sub(/[ \t]+# .*/, "", text)
    if (group == "") {
      group = text ~ /^(sudo |scripts\/|cmake |ctest |build\/|\.\/|g\+\+ |git |cd |mkdir |apt|DIR\/|apogee [a-z]|export )/ ? "commands" : "output"
    }
    if (group == "commands") print (folder == "" ? "clone" : folder) "\t" text
    blank = 0
    next
  }
  { blank = 0; group = "" }
' "$ROOT/docs/start.md" >"$work/commands"

mapfile -t commands <"$work/commands"
((${#commands[@]} > 0)) || { echo "start_page: docs/start.md has no commands" >&2; exit 1; }

# What is run for one: as root without sudo, DIR as a folder, a script that ran before with few steps.
declare -A ran=()
resolve() {
  command="${1//sudo /}"
  command="$(sed -E "s,(^|[ =])DIR(/| |$),\1$base/installed\2,g" <<<"$command")"
  local script="${command%% *}"
  if [[ "$script" == scripts/quickstart.sh ]]; then
    if [[ -n "${ran[$script]-}" ]]; then
      [[ "$command" != *--steps* ]] || command="$(sed -E 's/ --steps [0-9]+//' <<<"$command")"
      command+=" --steps 20"
    fi
    ran[$script]=1
  fi
}

if ((list)); then
  base=/root
  for line in "${commands[@]}"; do
    resolve "${line#*$'\t'}"
    printf '%-8s %s\n' "${line%%$'\t'*}" "$command"
  done
  for file in "$work"/files/*; do echo "project  writes ${file##*/}, $(wc -l <"$file") lines"; done
  exit 0
fi

if ((here)); then
  base="$work/base"
  mkdir "$base"
  outside="$base"
  # run FOLDER COMMAND
  run() { (cd "$base/$1" && PKG_CONFIG_PATH="$(pkg_config_path)" bash -c "$2"); }
else
  source "$ROOT/scripts/empty_debian.sh"
  phase "an empty Debian (not counted)"
  debian="$work/debian"
  make_debian "$debian" || { echo "start_page: or pass --here" >&2; exit 1; }
  base=/root
  outside="$debian$base"
  run() { in_debian "$debian" "cd $base/$1 && $2" "PKG_CONFIG_PATH=$(pkg_config_path)"; }
fi

# Where the page has installed the library, as the reader's system would have it.
pkg_config_path() {
  local found
  found="$(find "$outside/installed" -name apogee.pc -printf '%h' 2>/dev/null || true)"
  printf '%s' "${found/#"$outside"/"$base"}"
}

phase "a clone (not counted)"
git clone --quiet --no-local --depth 1 "file://$ROOT" "$outside/clone"
mkdir "$outside/project"
cp "$work"/files/* "$outside/project/"

begin=$SECONDS
for line in "${commands[@]}"; do
  folder="${line%%$'\t'*}"
  resolve "${line#*$'\t'}"
  # shellcheck disable=SC2053  # a pattern
  if [[ -n "$stop_before" && "$command" == $stop_before ]]; then
    echo "start_page: stopped before: $command"
    break
  fi
  if ((here)) && [[ "$command" == apt-get* ]]; then
    echo "start_page: left out: $command"
    continue
  fi
  phase "$command"
  status=0
  run "$folder" "$command" </dev/null || status=$?
  if ((status != 0)); then
    print_phases
    echo "start_page: FAILED with $status: $command"
    exit 1
  fi
done
seconds=$((SECONDS - begin))
print_phases
echo "start_page: the commands of docs/start.md took $seconds s; the limit is $((limit * 60)) s"
((seconds <= limit * 60)) || { echo "start_page: FAILED: too long"; exit 1; }
