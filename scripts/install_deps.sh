#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs Debian packages for one or more purposes, and only those that are missing:
#
#   scripts/install_deps.sh                 quickstart: build and run the examples
#   scripts/install_deps.sh quickstart test bench mpi
#
# If all packages are installed, needs no network. Otherwise needs root or sudo.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# bible-kjv-text is the corpus of the examples. make: `cmake -S . -B build` in a reader's project asks for it.
quickstart=(g++ cmake make ninja-build ccache libabsl-dev libeigen3-dev libdnnl-dev libcli11-dev
  nlohmann-json3-dev libxxhash-dev libsodium-dev libutf8proc-dev
  bible-kjv)
test=(libgtest-dev libgmock-dev pkg-config clang-format-14 libsentencepiece-dev shellcheck python3-yaml fish)
bench=(libbenchmark-dev)
mpi=(libopenmpi-dev)
tidy=(clang-tidy-14)
fuzz=(clang-14 libclang-rt-14-dev)
strace=(strace)
network=(iproute2)
docs=(mkdocs mkdocs-material doxygen)  # the site
cuda=(libboost-context-dev)  # the GPU in software; nvcc is NVIDIA's own package

wanted=()
for group in "${@:-quickstart}"; do
  case "$group" in
    quickstart | test | bench | mpi | tidy | fuzz | strace | network | docs | cuda)
      declare -n packages="$group"
      wanted+=("${packages[@]}")
      ;;
    *)
      echo "install_deps: unknown group '$group'; known: quickstart test bench mpi tidy fuzz strace network docs cuda" >&2
      exit 2
      ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  state="$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)"
  [[ "$state" == ii* ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "install_deps: nothing to install"
  exit 0
fi

sudo=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || {
    echo "install_deps: needs root or sudo to install: ${missing[*]}" >&2
    exit 1
  }
  sudo=(sudo)
fi
echo "install_deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
