#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder that checks a GPU machine on which nothing can be installed. It has the tests that run on a
# device, the apogee command, the benchmarks, and all libraries they need except the C library and CUDA's own
# (CUDA's runtime is there). Packs it into two archives, of which the second one adds the tests:
#
#   scripts/gpu_bundle.sh [--emulated] [--pack-only] FOLDER   # and FOLDER.tar.xz, FOLDER-tests.tar.xz
#   FOLDER/scripts/gpu_check.sh                               # on the GPU machine
#
#   --emulated    builds for the GPU in software instead of with nvcc, to try the check itself
#   --pack-only   takes what an earlier call has built
#
# Needs nvcc, but no GPU. CUDAARCHS names the GPUs (90-real: H100 and H200). All layers are shared libraries, so that
# the kernels are there once. Ends with an error if the archives are larger than 15 MB together.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cuda=ON
pack_only=0
while (($# > 1)); do
  case "$1" in
    --emulated) cuda=EMULATED ;;
    --pack-only) pack_only=1 ;;
    *) set -- ;;
  esac
  shift || true
done
if (($# != 1)) || [[ "$1" == -* ]]; then
  sed -n '3,/^source/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
folder="$(realpath -m "$1")"
if [[ -e "$folder" && ! -x "$folder/scripts/gpu_check.sh" ]]; then
  echo "gpu_bundle: $folder exists and is no bundle; name a new folder" >&2
  exit 2
fi
cd "$ROOT"
build="build/gpu-bundle-${cuda,,}"

if ((!pack_only)); then
  phase "configure"
  cuda_flags=""
  # Not compressed one by one: kernels are alike, and xz finds that. nvcc knows the flag since CUDA 12.8.
  if [[ "$cuda" == ON ]]; then
    nvcc="$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")"
    [[ "$("$nvcc" --help)" != *--compress-mode* ]] || cuda_flags="--compress-mode=none"
  fi
  # The programs must run on other processors than this one, and need few libraries. An RPATH, not a RUNPATH, also
  # serves the libraries' own needs.
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DAPOGEE_WITH_CUDA=$cuda -DAPOGEE_NATIVE=OFF \
    -DCMAKE_CXX_FLAGS=-march=x86-64-v3 -DAPOGEE_WITH_ONEDNN=OFF -DAPOGEE_WITH_MPI=OFF \
    -DAPOGEE_WITH_SENTENCEPIECE=OFF -DAPOGEE_WITH_UTF8PROC=OFF -DAPOGEE_UNITY=ON -DBUILD_SHARED_LIBS=ON \
    -DAPOGEE_BUILD_BENCH=ON "-DCMAKE_CUDA_ARCHITECTURES=${CUDAARCHS:-90-real}" \
    "-DCMAKE_CUDA_FLAGS=${CUDAFLAGS:-} $cuda_flags" \
    -DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib' \
    '-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags' '-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--disable-new-dtags' >/dev/null
fi
# These run under `apogee run`, with a GPU for each rank.
mapfile -t tests < <({ cut -d ' ' -f 2 "$build/device_tests.txt"; printf '%s\n' comm_collectives_test comm_failures_test; } | sort -u)
if ((!pack_only)); then
  phase "build"
  build "$build" --target "${tests[@]}" apogee_command gpu_bench
fi

phase "copy"
rm -rf "$folder"
mkdir -p "$folder"/{tests,bin,lib,scripts,bench}
for test in "${tests[@]}"; do cp "$build/tests/$test" "$folder/tests/"; done
cp "$build/device_tests.txt" "$folder/tests/"
cp "$build/bin/apogee" "$build/bench/gpu_bench" "$folder/bin/"
find "$build" -name 'libapogee_*.so' -exec cp -t "$folder/lib" {} +
cp scripts/gpu_check.sh scripts/gpu_check_rows.sh scripts/gpu_table.py "$folder/scripts/"
cp bench/pytorch_gpu.py bench/pytorch_kernels.py "$folder/bench/"
git -C "$ROOT" describe --always --dirty >"$folder/VERSION" 2>/dev/null || echo "no commit" >"$folder/VERSION"
programs=("$folder"/bin/* "${tests[@]/#/$folder/tests/}")
# The GPU machine has a C library, a loader and a driver of its own. All other libraries are copied.
ldd "${programs[@]}" "$folder"/lib/*.so | awk -v own="$folder/" '$3 ~ /^\// && index($3, own) != 1 {print $3}' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libcuda|ld-linux[^/]*)\.so' | xargs -r cp -t "$folder/lib"
chmod u+w "$folder"/lib/*
strip --strip-unneeded "${programs[@]}" "$folder"/lib/*
if LD_LIBRARY_PATH="" ldd "${programs[@]}" | grep "not found" | sort -u; then
  echo "gpu_bundle: libraries are missing" >&2
  exit 1
fi

phase "pack"
# A machine without xz unpacks it with `python3 -m tarfile -e FILE.tar.xz`. gzip's archives are half as large again.
pack() {  # pack ARCHIVE PATH...: of the folder's parent
  tar -C "$(dirname "$folder")" --sort=name --owner=0 --group=0 --numeric-owner -cf - "${@:2}" |
    xz --threads=1 --x86 --lzma2=preset=9e,dict=128MiB >"$1"
}
name="$(basename "$folder")"
pack "$folder.tar.xz" "$name"/{VERSION,bench,bin,lib,scripts}
pack "$folder-tests.tar.xz" "$name/tests"
end_phase
du -sh "$folder"
bytes=0
for archive in "$folder.tar.xz" "$folder-tests.tar.xz"; do
  echo "$archive: $(stat -c %s "$archive") bytes"
  bytes=$((bytes + $(stat -c %s "$archive")))
done
if ((bytes > 15000000)); then
  echo "gpu_bundle: $bytes bytes; at most 15,000,000 are wanted" >&2
  exit 1
fi
