#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder that checks a GPU machine on which nothing can be installed. It has the tests that run on a
# device, the apogee command, the benchmarks, and all libraries they need except the C library and CUDA's own.
#
#   scripts/gpu_bundle.sh [--emulated] FOLDER   # and FOLDER.tar.xz
#   FOLDER/scripts/gpu_check.sh                 # on the GPU machine
#
# Needs nvcc, but no GPU. --emulated builds for the GPU in software instead, to try the check itself.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cuda=ON
if [[ "${1:-}" == "--emulated" ]]; then
  cuda=EMULATED
  shift
fi
if (($# != 1)); then
  echo "usage: scripts/gpu_bundle.sh [--emulated] FOLDER" >&2
  exit 2
fi
folder="$(realpath -m "$1")"
if [[ -e "$folder" && ! -x "$folder/scripts/gpu_check.sh" ]]; then
  echo "gpu_bundle: $folder exists and is no bundle; name a new folder" >&2
  exit 2
fi
cd "$ROOT"

phase "configure"
build="build/gpu-bundle-${cuda,,}"
# The programs must run on other processors than this one, and need few libraries.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DAPOGEE_WITH_CUDA=$cuda -DAPOGEE_NATIVE=OFF \
  -DCMAKE_CXX_FLAGS=-march=x86-64-v3 -DAPOGEE_WITH_ONEDNN=OFF -DAPOGEE_WITH_MPI=OFF -DAPOGEE_BUILD_BENCH=ON \
  '-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc -Wl,--disable-new-dtags' \
  '-DCMAKE_BUILD_RPATH=$ORIGIN/../lib' >/dev/null
mapfile -t tests <"$build/device_tests.txt"
# These run under `apogee run`, with a GPU for each rank.
process_tests=(comm_collectives_test comm_failures_test)

phase "build"
cmake --build "$build" -j "$JOBS" --target "${tests[@]}" "${process_tests[@]}" apogee gpu_bench 01_train_gpt

phase "copy"
rm -rf "$folder"
mkdir -p "$folder"/{tests,tests_of_processes,bin,lib,scripts,bench}
for test in "${tests[@]}"; do cp "$build/tests/$test" "$folder/tests/"; done
for test in "${process_tests[@]}"; do cp "$build/tests/$test" "$folder/tests_of_processes/"; done
cp "$build/bin/apogee" "$folder/bin/"
find "$build" -type f \( -name gpu_bench -o -name 01_train_gpt \) -perm -u+x -exec cp {} "$folder/bin/" \;
cp scripts/gpu_check.sh scripts/gpu_table.py "$folder/scripts/"
cp bench/pytorch_gpu.py "$folder/bench/"
strip "$folder"/{tests,tests_of_processes,bin}/*
# The GPU machine has a C library and a loader of its own. All other libraries are copied.
ldd "$folder"/{tests,tests_of_processes,bin}/* | awk '$3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | xargs -r cp -t "$folder/lib"
phase "pack"
# All programs have the same kernels. With a window larger than a program, xz packs 1.7 GB into 33 MB.
tar -C "$(dirname "$folder")" -cf - "$(basename "$folder")" |
  xz --threads=1 --lzma2=preset=3,dict=256MiB >"$folder.tar.xz"
du -sh "$folder" "$folder.tar.xz"
end_phase
