#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Debian packages and an archive of them, in out/packages:
#
#   scripts/package.sh [--static] [--no-cuda] [--check]
#
#   --static    static libraries in libapogee-dev; otherwise libapogee0.2 has shared ones
#   --no-cuda   without CUDA kernels, which the library has otherwise if nvcc is found
#   --check     installs the packages in an empty Debian, compiles and runs a program there with find_package and with
#               pkg-config, runs the command, reads its man page, and removes all packages again. Needs root,
#               mmdebstrap and Debian's archive
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

shared=ON
cuda=AUTO
check=0
for arg in "$@"; do
  case "$arg" in
    --static) shared=OFF ;;
    --no-cuda) cuda=OFF ;;
    --check) check=1 ;;
    *)
      sed -n '3,/^source/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
done

out="$ROOT/out/packages"
tree="$ROOT/build/package"
[[ "$shared" == ON ]] || tree="$ROOT/build/package-static"
phase "configure"
cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DAPOGEE_UNITY=ON \
  -DBUILD_SHARED_LIBS=$shared -DAPOGEE_WITH_CUDA=$cuda -DAPOGEE_BUILD_TESTS=OFF -DAPOGEE_BUILD_EXAMPLES=OFF >/dev/null
phase "build"
build "$tree"
phase "pack"
mkdir -p "$out"
rm -f "$out"/*
(cd "$tree" && cpack -B "$out" >cpack.log 2>&1) || { cat "$tree/cpack.log"; exit 1; }
rm -rf "$out/_CPack_Packages"
ls -l "$out"

if ((check)); then
  phase "empty Debian"
  root="$(mktemp -d)"
  trap 'umount -q "$root/proc" || true; rm -rf --one-file-system "$root"' EXIT
  chmod 755 "$root"
  mmdebstrap --quiet --variant=apt "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root"
  inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
  mount -t proc proc "$root/proc"
  mkdir "$root/packages" "$root/hello"
  cp "$out"/*.deb "$root/packages"
  cp tests/consumer/hello/* "$root/hello"
  cp -f /etc/resolv.conf "$root/etc/resolv.conf"
  for file in /etc/apt/apt.conf.d/*; do
    if grep -qi proxy "$file"; then cp "$file" "$root/etc/apt/apt.conf.d/"; fi
  done

  phase "install"
  inside apt-get -qq update
  mapfile -t packages < <(cd "$root" && printf '/%s\n' packages/*.deb)
  mapfile -t needed < <(printf '%s\n' "${packages[@]}" | grep -v -- -dev_)
  inside apt-get -qq install -y --no-install-recommends "${needed[@]}" >/dev/null
  inside apogee --version
  inside apogee matrix --only "[a]damw/zero2/world2/f32/acc1/fed"  # before any -dev package is there
  inside test -s /usr/share/man/man1/apogee.1
  inside apt-get -qq install -y --no-install-recommends g++ cmake make pkg-config "${packages[@]}" >/dev/null
  phase "consumer"
  inside cmake -S /hello -B /hello/build -DCMAKE_BUILD_TYPE=Release >/dev/null
  inside cmake --build /hello/build >/dev/null
  inside /hello/build/consumer_hello
  static=""
  [[ "$shared" == ON ]] || static="--static"
  inside sh -c "g++ -std=c++20 -O1 /hello/main.cc -o /hello/pc \$(pkg-config --cflags --libs $static apogee)"
  inside /hello/pc
  phase "remove"
  inside apt-get -qq purge -y 'apogee' 'libapogee*' >/dev/null
  if left="$(find "$root/usr" -ipath '*apogee*' | head -n 5)" && [[ -n "$left" ]]; then
    echo "package: these files are left after the packages were removed:" >&2
    echo "$left" >&2
    exit 1
  fi
  echo "package check: ok"
fi
print_phases
