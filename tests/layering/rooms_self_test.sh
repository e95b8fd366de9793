#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# That rooms_check.sh passes on a small tree and refuses each thing that it is there to refuse.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{optim,booster,tests/golden}
cases=0

# expect STATUS TEXT: of a check of the tree.
expect() {
  local status=0 output
  output="$("$here/rooms_check.sh" "$work" 2>&1)" || status=$?
  cases=$((cases + 1))
  if ((status != $1)) || [[ "$output" != *"$2"* ]]; then
    echo "rooms self test, case $cases: expected status $1 and \"$2\", got $status:"
    echo "$output"
    exit 1
  fi
}

for i in {1..30}; do echo "// $i" >"$work/optim/file$i.h"; done
seq 400 | sed 's,^,// ,' >"$work/booster/long.cc"
seq 1000 | sed 's,^,// ,' >"$work/tests/golden/data.h"
expect 0 "31 files in rooms"
echo "// 31" >"$work/optim/file31.h"
expect 1 "optim has 31 source files"
rm "$work/optim/file31.h"
echo "// 401" >>"$work/booster/long.cc"
expect 1 "booster/long.cc has 401 lines"
sed -i '$d' "$work/booster/long.cc"
echo "comm::Layout layout;" >"$work/optim/file1.h"
expect 1 "optim/file1.h:1 uses a name that is gone; write Layout of layout/"
echo "using LayoutOfTheDay = int;" >"$work/optim/file1.h"
expect 0 "files in rooms"
echo "auto* plugin = dynamic_cast<const GeminiPlugin*>(&other);" >"$work/booster/cast.cc"
expect 1 "booster/cast.cc:1 casts to a plugin"
mv "$work/booster/cast.cc" "$work/optim/file2.h"
expect 0 "files in rooms"
echo "auto* local = dynamic_cast<optim::LocalGradients*>(&other);" >"$work/booster/cast.cc"
expect 1 "booster/cast.cc:1 casts to an optimizer"
rm "$work/booster/cast.cc"
echo "std::shared_ptr<void> alive_;" >"$work/booster/token.cc"
expect 1 "booster/token.cc:1 keeps a token of its own life"
rm "$work/booster/token.cc"
mkdir "$work/autograd"
echo "// zeros, zero_grad and NextChunkOf are no words of plugins" >"$work/autograd/parameter.h"
expect 0 "files in rooms"
echo "// a value that is released" >>"$work/autograd/parameter.h"
expect 1 "autograd/parameter.h:2 has a word of plugins"
rm -r "$work/autograd"
rm -r "$work/optim" "$work/booster"
expect 1 "no source file"
echo "rooms self test: $cases cases"
