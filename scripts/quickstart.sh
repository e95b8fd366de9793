#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a trained model: installs what is missing, builds one example and trains it on
# four ranks, threads of one process: two share every layer, and two copies of the model the batch and
# the optimizer (ZeRO stage 2); in bf16 where the processor multiplies it. Arguments go to the example:
#
#   scripts/quickstart.sh [--steps 200 ...]
#   scripts/quickstart.sh --precision f32
#   scripts/quickstart.sh --ranks 1                # --ranks or --plugin: these instead of the above
#
# The run's files land in out/quickstart. The program is compiled for this machine's processor only, quickly (only
# kernels are optimised in full), and without kernels for GPUs: `cmake --preset release` compiles these where nvcc is found (docs/gpu.md).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

phase "dependencies"
scripts/install_deps.sh quickstart

phase "build"
cmake -S . -B build/quickstart -G Ninja -DCMAKE_BUILD_TYPE=Release -DAPOGEE_BUILD_TESTS=OFF \
  -DAPOGEE_BUILD_BENCH=OFF -DAPOGEE_BUILD_TOOLS=OFF -DAPOGEE_BUILD_EXAMPLES=ON -DAPOGEE_WITH_CUDA=OFF \
  -DAPOGEE_NATIVE=ON -DAPOGEE_UNITY=ON "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"
build build/quickstart --target 01_train_gpt

phase "train"
mkdir -p out/quickstart
program="$(find build/quickstart/examples -type f -name 01_train_gpt | head -n 1)"
ranks=(--ranks 4 --plugin hybrid --tp-size 2 --zero-stage 2)
for arg in "$@"; do
  [[ "$arg" =~ ^--(ranks|plugin|reproducible)(=|$) ]] && ranks=()
done
"$program" --out out/quickstart --precision auto "${ranks[@]}" "$@"

print_phases
