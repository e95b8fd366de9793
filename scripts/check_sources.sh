#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles each source by itself, without precompiled headers: the unity build of scripts/test.sh does not notice
# a header that a source uses and does not include. Optimises nothing, links nothing.
#
#   scripts/check_sources.sh            # a twentieth of the library, the command and the examples; another with
#                                       # each commit (scripts/tenth.sh)
#   scripts/check_sources.sh --all      # all sources, tests and benches too: half an hour
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

dir=build/sources
cmake --preset debug -B "$dir" -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DAPOGEE_BUILD_BENCH=ON -DAPOGEE_WITH_CUDA=OFF >/dev/null
mapfile -t objects < <(ninja -C "$dir" -t targets all | sed -n 's/\.cc\.o: .*/.cc.o/p')
if [[ "${1:-}" != "--all" ]]; then
  mapfile -t objects < <(printf '%s\n' "${objects[@]}" | grep -vE '^(tests|bench)/' | scripts/tenth.sh --of 20)
fi
if ((${#objects[@]} == 0)); then
  echo "check_sources: no sources were found"
  exit 1
fi
build "$dir" --target "${objects[@]}" -- -k 0
echo "check_sources: ${#objects[@]} sources compile by themselves"
