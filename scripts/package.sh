#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Debian packages and an archive of them, in out/packages:
#
#   scripts/package.sh [--static] [--no-cuda] [--check]
#
#   --static    static libraries in libapogee-dev; otherwise libapogee0.2 has shared ones
#   --no-cuda   without CUDA kernels, which the library has otherwise if nvcc is found
#   --check     installs the packages in an empty Debian, compiles and runs a program there with find_package and with
#               pkg-config, trains with the command, and removes all packages again (scripts/empty_debian.sh)
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
  source "$ROOT/scripts/empty_debian.sh"
  phase "empty Debian"
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  debian="$work/debian"
  make_debian "$debian"
  mkdir "$debian/packages" "$debian/hello"
  cp "$out"/*.deb "$debian/packages"
  cp tests/consumer/hello/* "$debian/hello"
  install="apt-get -qq install -y --no-install-recommends"

  phase "install"
  in_debian "$debian" "$install \$(ls /packages/*.deb | grep -v -- -dev_) >/dev/null"
  in_debian "$debian" "apogee --version && test -s /usr/share/man/man1/apogee.1"
  # Before any -dev package is there.
  in_debian "$debian" 'apogee matrix --only "[a]damw/zero2/world2/f32/acc1/fed"'
  in_debian "$debian" "$install g++ cmake make pkg-config /packages/*.deb >/dev/null"
  phase "consumer"
  in_debian "$debian" "cmake -S /hello -B /hello/build -DCMAKE_BUILD_TYPE=Release >/dev/null && cmake --build /hello/build >/dev/null"
  in_debian "$debian" /hello/build/consumer_hello
  static=""
  [[ "$shared" == ON ]] || static="--static"
  in_debian "$debian" "g++ -std=c++20 -O1 /hello/main.cc -o /hello/pc \$(pkg-config --cflags --libs $static apogee) && /hello/pc"
  phase "remove"
  in_debian "$debian" "apt-get -qq purge -y apogee 'libapogee*' >/dev/null"
  left="$(find "$debian/usr" -ipath '*apogee*')"
  if [[ -n "$left" ]]; then
    echo "package: these files are left after the packages were removed:" >&2
    head -n 5 <<<"$left" >&2
    exit 1
  fi
  echo "package check: ok"
fi
print_phases
