#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the commands of docs/start.md in their order, in an empty Debian, and takes their time:
#
#   scripts/start_page.sh [--limit MINUTES] [--stop-before PATTERN] [--here] [--list]
#
# As root it makes the smallest Debian 12 (mmdebstrap or debootstrap; build/start_page keeps it for the next call) and
# runs each command there with chroot, in a fresh clone of the last commit. Files that the page quotes are written into a
# folder of their own, in which the commands of that section then run. DIR stands for a folder.
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
  ((EUID == 0)) || { echo "start_page: an empty Debian needs root; or pass --here" >&2; exit 1; }
  phase "an empty Debian (not counted)"
  archive="$ROOT/build/start_page/debian.tar"
  if [[ ! -s "$archive" ]]; then
    mkdir -p "${archive%/*}"
    new="$ROOT/build/start_page/new.tar"  # mmdebstrap asks the name for the format
    if command -v mmdebstrap >/dev/null; then
      mmdebstrap --quiet --mode=root --variant=minbase bookworm "$new"
    elif command -v debootstrap >/dev/null; then
      debootstrap --variant=minbase bookworm "$work/made" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
      tar -C "$work/made" -cf "$new" .
      rm -rf "$work/made"
    else
      echo "start_page: needs mmdebstrap or debootstrap (apt-get install mmdebstrap); or pass --here" >&2
      exit 1
    fi
    mv "$new" "$archive"
  fi
  debian="$work/debian"
  mkdir "$debian"
  tar -C "$debian" -xf "$archive" --exclude='./dev/*'
  cp /etc/resolv.conf "$debian/etc/resolv.conf"
  # This machine's proxy and certificates, if it has any.
  for file in /etc/apt/apt.conf.d/*proxy*; do
    if [[ -f "$file" ]]; then cp "$file" "$debian/etc/apt/apt.conf.d/"; fi
  done
  base=/root
  outside="$debian$base"
  # In a mount and process namespace of its own: nothing stays mounted, and no process stays.
  inside() {
    # shellcheck disable=SC2016  # the inner shell expands them
    unshare --mount --pid --fork --kill-child bash -c '
      mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && cd / &&
      exec chroot "$1" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} PKG_CONFIG_PATH="$3" bash -c "$2"
    ' inside "$debian" "$1" "$(pkg_config_path)"
  }
  run() { inside "cd $base/$1 && $2"; }
  # An installed Debian has the lists of packages; this one has none.
  inside "apt-get update -qq"
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
