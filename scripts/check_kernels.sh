#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles CUDA kernels for sm_90 as a release does, and compares their registers, shared memory and spills with
# cmake/kernel_resources.tsv (scripts/kernel_resources.py says what fails). Needs nvcc, no GPU.
#
#   scripts/check_kernels.sh                      # half of the sources, others with each commit
#   scripts/check_kernels.sh --all
#   scripts/check_kernels.sh tensor/cuda/copy.cu  # these sources
#   scripts/check_kernels.sh --accept [SOURCE...] # writes what it finds into the table; without SOURCE: of all
#
# Exit code: 0 nothing grew, 1 something did, 2 wrong use, 77 no nvcc, or another one than the table's.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$ROOT/scripts/tenth.sh"

all=0
options=()
sources=()
for arg in "$@"; do
  case "$arg" in
    --all) all=1 ;;
    --accept) options+=(--accept) ;;
    -*)
      echo "usage: scripts/check_kernels.sh [--all | [--accept] SOURCE...]" >&2
      exit 2
      ;;
    *) sources+=("$arg") ;;
  esac
done

nvcc="${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"
if [[ ! -x "$nvcc" ]]; then
  echo "check_kernels: not checked: no $nvcc"
  exit 77
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# CUDAFLAGS of scripts/test.sh leaves optimisations out, which changes registers.
env -u CUDAFLAGS cmake -S "$ROOT" -B "$work/build" --preset release -DAPOGEE_WITH_CUDA=ON -DAPOGEE_BUILD_TESTS=OFF \
  -DAPOGEE_BUILD_EXAMPLES=OFF -DAPOGEE_BUILD_TOOLS=OFF -DCMAKE_CUDA_COMPILER="$nvcc" \
  -DCMAKE_CUDA_ARCHITECTURES=90 -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
commands="$work/build/compile_commands.json"
if ((${#sources[@]} == 0 && ${#options[@]} == 0 && !all)); then
  mapfile -t sources < <("$ROOT/scripts/kernel_resources.py" "$commands" --list | tenth --of 2)
fi
"$ROOT/scripts/kernel_resources.py" "$commands" --jobs "$JOBS" "${options[@]}" "${sources[@]}"
