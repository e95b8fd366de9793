#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a trained model: installs missing packages, builds one example, trains a tokenizer of
# 4,096 tokens on the text, and the example on four ranks, which are threads of one process. Uses tensor parallelism over two ranks, and two data-parallel
# replicas with ZeRO stage 2. The precision is bf16 if the processor has bf16 products. Passes its arguments to
# the example:
#
#   scripts/quickstart.sh [--steps 200 ...]
#   scripts/quickstart.sh --precision f32
#   scripts/quickstart.sh --ranks 1                # --ranks or --plugin replaces the parallelism above
#   scripts/quickstart.sh --tokenizer byte         # replaces the trained tokenizer
#
# Writes the run's files to out/quickstart. Compiles for this machine's processor only, without GPU kernels, and
# optimises only the CPU kernels in full. `cmake --preset release` compiles GPU kernels if it finds nvcc
# (docs/gpu.md).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

phase "dependencies"
scripts/install_deps.sh quickstart

phase "build"
cmake -S . -B build/quickstart -G Ninja -DCMAKE_BUILD_TYPE=Release -DAPOGEE_BUILD_TESTS=OFF \
  -DAPOGEE_BUILD_BENCH=OFF -DAPOGEE_BUILD_TOOLS=OFF -DAPOGEE_BUILD_EXAMPLES=ON -DAPOGEE_WITH_CUDA=OFF \
  -DAPOGEE_NATIVE=ON -DAPOGEE_UNITY=ON "-DCMAKE_CXX_FLAGS_RELEASE=-Og -DNDEBUG"
build build/quickstart --target 01_train_gpt

phase "train"
mkdir -p out/quickstart
program="$(find build/quickstart/examples -type f -name 01_train_gpt | head -n 1)"
ranks=(--ranks 4 --plugin hybrid --tp-size 2 --zero-stage 2)
tokenizer=(--train-tokenizer 4096)
for arg in "$@"; do
  [[ "$arg" =~ ^--(tokenizer|train-tokenizer)(=|$) ]] && tokenizer=()
  [[ "$arg" =~ ^--(ranks|plugin|reproducible)(=|$) ]] && ranks=()
done
"$program" --out out/quickstart --precision auto "${tokenizer[@]}" "${ranks[@]}" "$@"

print_phases
