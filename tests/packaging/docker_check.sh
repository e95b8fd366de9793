#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the Dockerfiles of packaging/docker without Docker:
#
#   tests/packaging/docker_check.sh [PROGRAM...]
#
#   packages   Debian has each package that a RUN line installs (apt-cache; left out if the machine has no lists)
#   copies     what a COPY line takes from the repository exists, and .dockerignore leaves it in; a stage that it
#              takes from is above it
#   presets    CMakePresets.json has each preset
#   commands   the shell reads each RUN line; docs/start.md has the commands that build and install
#   user       the last stage does not run as root
#   libraries  each library that PROGRAM loads is in a package of the last stage (MPI's are not in the images)
#
# If hadolint is installed, it reads them, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

failed=0
wrong() {
  echo "docker_check: $*"
  failed=1
}

# instructions FILE: one a line, without comments, continued lines joined.
instructions() { grep -vE '^\s*(#|$)' "$1" | sed -e ':a' -e '/\\$/N; s/\\\n\s*/ /; ta'; }

# packages_of TEXT: what `apt-get install` has after its options.
packages_of() { grep -oE 'apt-get install [^&;|]*' <<<"$1" | tr ' ' '\n' | tail -n +3 | grep -vE '^(-.*|)$'; }

has_lists=0
if command -v apt-cache >/dev/null && [[ -n "$(apt-cache show debianutils 2>/dev/null)" ]]; then
  has_lists=1
else
  echo "docker_check: no lists of Debian's packages: left out"
fi

# check FILE
check() {
  local file="$1" instruction kind rest word stages=" " user="" base="" installed=""
  local words=()
  while IFS= read -r instruction; do
    kind="${instruction%% *}"
    rest="${instruction#* }"
    case "$kind" in
      FROM)
        read -ra words <<<"$rest"
        base="${words[0]}"
        user="" installed=""
        [[ "$base" == *:* && "$base" != *:latest ]] || wrong "$file: $base has no version"
        if ((${#words[@]} == 3)); then stages+="${words[2]} "; fi
        ;;
      RUN)
        bash -n -c "$rest" || wrong "$file: the shell does not read: $rest"
        [[ "$rest" != *'apt-get install'* || "$rest" == *'rm -rf /var/lib/apt/lists'* ]] ||
          wrong "$file: the lists of packages stay in the image"
        for word in $(packages_of "$rest"); do
          installed+=" $word"
          ((has_lists == 0)) || [[ "$available" == *" $word "* ]] || wrong "$file: Debian has no package $word"
        done
        while read -r word; do
          grep -q "\"name\": \"$word\"" CMakePresets.json || wrong "$file: CMakePresets.json has no preset $word"
        done < <(grep -oE -- '--preset [a-z-]+' <<<"$rest" | cut -d' ' -f2)
        # The page builds the preset `release`.
        if [[ "$rest" == cmake\ * ]]; then
          word="$(sed -e 's/\(preset \|build\/\)cuda/\1release/g' -e 's, /opt/apogee$, DIR,' <<<"$rest")"
          grep -qxF "    $word" docs/start.md || wrong "$file: docs/start.md does not have the command: $word"
        fi
        ;;
      COPY)
        read -ra words <<<"$rest"
        if [[ "${words[0]}" == --from=* ]]; then
          word="${words[0]#--from=}"
          [[ "$stages" == *" $word "* ]] || wrong "$file: there is no stage $word above: $instruction"
          continue
        fi
        for word in "${words[@]:0:${#words[@]}-1}"; do
          [[ -e "$word" ]] || wrong "$file: $word does not exist"
          ! grep -qxF "${word%%/*}" .dockerignore || wrong "$file: .dockerignore leaves $word out"
        done
        ;;
      USER) user="$rest" ;;
      WORKDIR | ENV | CMD) ;;
      *) wrong "$file: unknown instruction $kind" ;;
    esac
  done < <(instructions "$file")
  [[ "$user" =~ ^[1-9][0-9]*$ ]] || wrong "$file: the last stage must have a USER with a number that is not 0"
  [[ "$base" == *-slim ]] || wrong "$file: the last stage is $base, which is not slim"

  local library
  for library in "${!owner[@]}"; do
    case "${owner[$library]}" in
      libc6 | libgcc-s1) ;;
      # What MPI needs, what tests read, and the GPU in software.
      libopenmpi* | libhwloc* | libevent* | libudev* | libsentencepiece* | libboost-context* | zlib*) ;;
      ocl-icd-* | libprotobuf*) ;;  # of libdnnl2 and SentencePiece
      *)
        [[ "$installed " == *" ${owner[$library]} "* ]] ||
          wrong "$file: a program loads $library of ${owner[$library]}, which is not installed"
        ;;
    esac
  done
}

files=(packaging/docker/Dockerfile.*)
# One call for all of them, because each reads all lists.
available=""
if ((has_lists)); then
  mapfile -t wanted < <(for file in "${files[@]}"; do packages_of "$(instructions "$file")"; done | sort -u)
  available=" $(apt-cache show "${wanted[@]}" 2>/dev/null | sed -n 's/^Package: //p' | sort -u | tr '\n' ' ')"
fi
# The package of each library that the programs load. /lib is a link to /usr/lib, and packages still name either.
declare -A owner=()
if (($#)); then
  mapfile -t libraries < <(ldd "$@" | awk '$3 ~ /^\// { sub("^/usr", "", $3); print $3; print "/usr" $3 }' | sort -u)
  while read -r package path; do
    owner["${path##*/}"]="${package%%:*}"
  done < <(dpkg-query -S "${libraries[@]}" 2>/dev/null | grep -v ^diversion)
  ((${#owner[@]} > 0)) || wrong "no library of $* has a package"
fi
for file in "${files[@]}"; do check "$file"; done
if command -v hadolint >/dev/null; then
  # DL3008: packages without a version. Debian 12 is the version.
  hadolint --ignore DL3008 "${files[@]}" || failed=1
fi
((failed == 0)) && echo "docker_check: ${#files[@]} files"
exit "$failed"
