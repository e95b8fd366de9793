#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts that try something in an empty Debian 12, as root and without a container program:
#
#   source scripts/empty_debian.sh
#   make_debian "$folder"                 # the smallest Debian; build/empty_debian keeps it for the next call
#   in_debian "$folder" "apt-get update"  # a shell command, under chroot
#
# Needs mmdebstrap or debootstrap, and Debian's archive. The machine's proxy goes along.

make_debian() {
  local debian="$1" archive="$ROOT/build/empty_debian/bookworm.tar" new file
  ((EUID == 0)) || { echo "empty_debian: needs root" >&2; return 1; }
  if [[ ! -s "$archive" ]]; then
    mkdir -p "${archive%/*}"
    new="${archive%/*}/new.tar"  # mmdebstrap asks the name for the format
    if command -v mmdebstrap >/dev/null; then
      mmdebstrap --quiet --mode=root --variant=minbase bookworm "$new"
    elif command -v debootstrap >/dev/null; then
      mkdir "$debian"
      debootstrap --variant=minbase bookworm "$debian" >"${archive%/*}/log" 2>&1 || { tail -n 20 "${archive%/*}/log" >&2; return 1; }
      tar -C "$debian" -cf "$new" .
      rm -rf "$debian"
    else
      echo "empty_debian: needs mmdebstrap or debootstrap (apt-get install mmdebstrap)" >&2
      return 1
    fi
    mv "$new" "$archive"
  fi
  mkdir "$debian"
  tar -C "$debian" -xf "$archive" --exclude='./dev/*'
  cp /etc/resolv.conf "$debian/etc/resolv.conf"
  for file in /etc/apt/apt.conf.d/*proxy*; do
    if [[ -f "$file" ]]; then cp "$file" "$debian/etc/apt/apt.conf.d/"; fi
  done
  # An installed Debian has the lists of packages; this one has none.
  in_debian "$debian" "apt-get update -qq"
}

# in_debian FOLDER COMMAND [VARIABLE=VALUE...]: in a mount and process namespace of its own, so nothing stays mounted, and
# no process stays.
in_debian() {
  # shellcheck disable=SC2016  # the inner shell expands them
  unshare --mount --pid --fork --kill-child bash -c '
    debian="$1" command="$2"
    shift 2
    mount -t proc proc "$debian/proc" && mount --rbind /dev "$debian/dev" && cd / &&
    exec chroot "$debian" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      DEBIAN_FRONTEND=noninteractive ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} \
      "$@" bash -c "$command"
  ' in_debian "$@"
}
