#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the public headers: those that the layers name in HDRS, so that they are installed.
#
#   tests/layering/public_check.sh LIST [ROOT]      # LIST: <build>/public_headers.txt
#
# Fails if a public header includes a private one or another library's, if apogee.h lacks one, or if there are more
# than 178: 60 % of those that were installed before the list was declared, eight of data (tokenizers, token files and
# samples, a program's corpus, documents), ten of models that people bring: families (4), generation, pretrained
# folders, instructions, eight of plans: setups, candidates, machines (3), failures, scaling, five of mixtures of
# experts, four of adapters, and one of orthogonal updates.
set -euo pipefail
list="$(realpath "$1")"
cd "${2:-$(dirname "${BASH_SOURCE[0]}")/../..}"

max_headers=185
umbrella=driver/apogee.h
wrong=0
problem() {
  echo "public_check: $1"
  wrong=$((wrong + 1))
}

mapfile -t headers < <(sort "$list")
if ((${#headers[@]} == 0)); then
  problem "no header in $list"
fi
if ((${#headers[@]} > max_headers)); then
  problem "${#headers[@]} public headers, at most $max_headers are allowed; take private ones out of HDRS"
fi

declare -A is_public=()
for header in "${headers[@]}"; do is_public["$header"]=1; done

for header in "${headers[@]}"; do
  while read -r included; do
    if [[ "$included" == apogee/* ]]; then
      [[ -n "${is_public["${included#apogee/}"]-}" ]] ||
        problem "$header is public and includes ${included#apogee/}, which is private"
    elif [[ "$included" =~ ^(CLI|nlohmann|Eigen|unsupported|dnnl|mpi|nccl|cuda|cublas|cudnn|sodium|zlib|utf8proc|sentencepiece) ]]; then
      problem "$header is public and includes $included; hide it in a source"
    fi
  done < <(sed -nE 's/^#include ["<]([^">]+)[">].*/\1/p' "$header")
  # Layers above the booster that not every build has.
  [[ "$header" =~ ^(matrix|verify)/ ]] || grep -qF "#include \"apogee/$header\"" "$umbrella" ||
    problem "$umbrella lacks $header; include it, or take it out of HDRS"
done

if ((wrong > 0)); then
  echo "public_check: $wrong problems"
  exit 1
fi
echo "public_check: ${#headers[@]} public headers"
