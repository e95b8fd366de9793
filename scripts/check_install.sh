#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves that the installed library does not need its source tree. Builds and installs a copy of the tree,
# moves the copy and the installation to other folders, and builds a consumer through find_package and through
# pkg-config. The consumer must compile, link and run. So must the project that `apogee new` writes;
# tests/consumer/optimizer, an optimizer of one's own; and tests/outside_app, a project with its own model, optimizers
# and plugin: it must get the same result on 4 ranks as on 1, and an error for every mistake.
# tests/consumer/subproject builds the source tree as a part of itself, by add_subdirectory and by FetchContent.
#
#   scripts/check_install.sh [--shared]     # --shared: the layers are shared libraries
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

shared=OFF
case "${1:-}" in
  --shared) shared=ON ;;
  ?*)
    echo "usage: scripts/check_install.sh [--shared]" >&2
    exit 2
    ;;
esac
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# What one installs: portable, with the kernels compiled by nvcc where it is found. In groups of sources, which
# takes a third of the time.
mkdir "$work/source"
tar -C "$ROOT" --exclude=./build --exclude=./out --exclude=./.git -cf - . | tar -C "$work/source" -xf -
cp -r "$ROOT/tests/consumer" "$ROOT/tests/outside_app" "$work"
cp -r "$ROOT/tools/new/template" "$work/my_app"
cp -r "$ROOT/examples" "$work/consumer/copied"
# Only the lowest layer is built here; the targets of all are made.
for fetch in OFF ON; do
  cmake -S "$ROOT/tests/consumer/subproject" -B "$work/subproject_$fetch" -DCMAKE_BUILD_TYPE=Release \
    "-DAPOGEE_SOURCE=$work/source" -DFETCH=$fetch >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
cmake --build "$work/subproject_OFF" --target consumer_subproject -j "$JOBS" >"$work/log" 2>&1 ||
  { cat "$work/log"; exit 1; }
"$work/subproject_OFF/consumer_subproject"
echo "install check: add_subdirectory and FetchContent ok"

cmake -S "$work/source" --preset release -DAPOGEE_UNITY=ON "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" \
  -DAPOGEE_BUILD_TESTS=OFF -DAPOGEE_BUILD_EXAMPLES=OFF \
  -DAPOGEE_BUILD_TOOLS=OFF -DBUILD_SHARED_LIBS=$shared -DCMAKE_INSTALL_PREFIX="$work/first" >"$work/log" 2>&1 ||
  { cat "$work/log"; exit 1; }
cmake --build "$work/source/build/release" -j "$JOBS" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --install "$work/source/build/release" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
rm -rf "$work/source" "$work"/subproject_*
mv "$work/first" "$work/installed"
prefix="$work/installed"

# Names of other libraries that our sources instantiate are no symbols of ours.
if [[ "$shared" == ON ]]; then
  foreign="$(find "$prefix/lib" -name 'libapogee_*.so' -exec nm -D --defined-only {} + | awk '$2 ~ /[A-Z]/ && $3 !~ /6apogee/')"
  if [[ -n "$foreign" ]]; then
    echo "shared layers export names without apogee:: (cmake/exports.map): $(head -n 5 <<<"$foreign")"
    exit 1
  fi
  for library in "$prefix"/lib/libapogee_*.so; do
    [[ "$(readelf -d "$library")" =~ SONAME.*\[$(basename "$library")\.[0-9]+\.[0-9]+\] ]] || {
      echo "$library: its SONAME has no version"
      exit 1
    }
  done
  echo "install check: symbols and versions ok"
fi

# Every header that an installed header includes must be installed too, and none may name the old place.
missing="$(grep -rhoE '#include "apogee/[^"]+"' "$prefix/include" | sort -u | cut -d'"' -f2 |
  while read -r header; do [[ -f "$prefix/include/$header" ]] || echo "$header"; done)"
if [[ -n "$missing" ]]; then
  echo "installed headers include headers that are not installed (add them to HDRS):" $missing
  exit 1
fi
if grep -rlI "$work/\(source\|first\)" "$prefix"; then
  echo "the files above hold an absolute path"
  exit 1
fi

# build PROJECT: a project of its own, with find_package, in $work/build_<its folder>.
build() {
  local folder="$work/build_$(basename "$1")"
  cmake -S "$1" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 &&
    cmake --build "$folder" -j "$JOBS" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}

# An optimizer, a plugin and a model of one's own: each compares 4 ranks with one.
for project in hello optimizer plugin model; do
  build "$work/consumer/$project"
  "$work/build_$project/consumer_$project"
done
echo "install check: find_package ok"

# The project that `apogee new` writes: it trains, and its own test passes.
build "$work/my_app"
"$work/build_my_app/my_app" zero2 4 100 >"$work/log" || { cat "$work/log"; exit 1; }
grep -q '^step  100  loss 0\.[0-9]*$' "$work/log" || { cat "$work/log"; exit 1; }
"$work/build_my_app/exact_test"
echo "install check: apogee new ok"

# Copies of the examples.
build "$work/consumer/examples"
text="$work/text"
seq 2000 >"$text"
common="--data $text --steps 3 --batch 4 --block 16 --layers 2 --heads 2 --dim 16 --precision f32"
"$work/build_examples/01_train_gpt" $common --ranks 2 --plugin zero2 --sample 1 >"$work/log"
"$work/build_examples/03_train_llama_hybrid" $common --kv-heads 2 --hidden 32 --sample 1 >"$work/log"
"$work/build_examples/04_gemini_big_model" $common >"$work/log"
"$work/build_examples/05_train_3d" $common --kv-heads 2 --hidden 32 --microbatches 2 >"$work/log"
echo "install check: copied examples ok"

cmake -S "$work/outside_app" -B "$work/outside_build" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/outside_build" -j "$JOBS" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for program in exact misuse; do
  "$work/outside_build/$program" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  echo "outside app, $program: $(tail -n 1 "$work/log")"
done

# A stack that is too small for a rank's thread must end in an error, not in a crash. The suite of preset `test`
# cannot check this, because the emulated GPU needs larger stacks than the ranks do.
(ulimit -s 128 && "$work/outside_build/exact") >"$work/log" 2>&1 || true
if ! grep -q "the thread of a rank has a stack of 128 KiB, needs 256 KiB" "$work/log"; then
  cat "$work/log"
  echo "the outside app did not say that a stack of 128 KiB is too small"
  exit 1
fi
echo "install check: small stacks ok"

export PKG_CONFIG_PATH="$(dirname "$(find "$prefix" -name apogee.pc)")"
static=(--static)
[[ "$shared" == OFF ]] || static=()
# shellcheck disable=SC2046
${CXX:-g++} -std=c++20 -O1 "$work/consumer/hello/main.cc" -o "$work/pc_consumer" \
  $(pkg-config --cflags --libs "${static[@]}" apogee)
LD_LIBRARY_PATH="$(dirname "$PKG_CONFIG_PATH")" "$work/pc_consumer"
echo "install check: pkg-config ok"
