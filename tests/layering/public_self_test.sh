#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# That public_check.sh passes on a small tree and refuses each thing that it is there to refuse.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{optim,driver}
cases=0

# expect STATUS TEXT: of a check of the tree.
expect() {
  local status=0 output
  output="$("$here/public_check.sh" "$work/list" "$work" 2>&1)" || status=$?
  cases=$((cases + 1))
  if ((status != $1)) || [[ "$output" != *"$2"* ]]; then
    echo "public self test, case $cases: expected status $1 and \"$2\", got $status:"
    echo "$output"
    exit 1
  fi
}

: >"$work/driver/apogee.h"
: >"$work/list"
for i in {1..185}; do
  echo "#include <vector>" >"$work/optim/file$i.h"
  echo "optim/file$i.h" >>"$work/list"
  echo "#include \"apogee/optim/file$i.h\"" >>"$work/driver/apogee.h"
done
expect 0 "185 public headers"
echo '#include "apogee/optim/state.h"' >"$work/optim/file1.h"
expect 1 "optim/file1.h is public and includes optim/state.h, which is private"
echo '#include <Eigen/Core>' >"$work/optim/file1.h"
expect 1 "optim/file1.h is public and includes Eigen/Core; hide it in a source"
: >"$work/optim/file1.h"
: >"$work/optim/state.h"
echo "optim/state.h" >>"$work/list"
expect 1 "186 public headers, at most 185"
expect 1 "driver/apogee.h lacks optim/state.h"
: >"$work/list"
expect 1 "no header in"
echo "public self test: $cases cases"
