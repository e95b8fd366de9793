#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_docs.sh must fail on what it forbids, and on nothing else: each case writes a small tree and one line into
# its documents.
#
#   tests/docs/self_test.sh
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

mkdir -p "$work"/{docs,scripts,tools,bench,tests/core,cmake,core,examples/01_train_gpt,driver}
cd "$work"
printf '# Title\n\n[ranks](docs/ranks.md#one-rank-its-threads-and-tcp)\n' >README.md
printf '# One rank: its `threads`, and *TCP*\n\n## Twice\n\n## Twice\n' >docs/ranks.md
printf '#!/bin/sh\n# --steps N\n01_train_gpt "$@"\n' >scripts/train.sh
printf '#!/bin/sh\n' >scripts/not_executable.sh
chmod +x scripts/train.sh
printf 'apogee_program(NAME 01_train_gpt SRCS main.cc LAYERS core)\n' >examples/01_train_gpt/CMakeLists.txt
printf 'app.add_option("--ranks");\n' >examples/01_train_gpt/main.cc
printf 'app.add_option("--save-every");\n' >driver/checkpoints.h
printf 'apogee_program(NAME ddp_bench SRCS ddp_bench.cc LAYERS core)\n' >bench/CMakeLists.txt
printf 'app.add_option("--rounds");\n' >bench/ddp_bench.cc
printf 'command->add_option("--only");\n' >tools/matrix_command.cc
printf 'command->add_option("-n,--num-ranks");\n' >tools/run_command.cc
printf 'apogee_test(NAME core_shape_test SRCS core/shape_test.cc LAYERS core)\n' >tests/core/tests.cmake
printf 'option(APOGEE_NATIVE)\n' >cmake/Options.cmake
printf 'project(apogee VERSION 0.2.1 LANGUAGES CXX)\n' >CMakeLists.txt
printf 'getenv("APOGEE_RANK")\n' >core/error.h
printf '{"configurePresets": [{"name": "release"}]}\n' >CMakePresets.json

failures=0
num_cases=0
# expect pass|fail WHAT LINE...: the lines are those of a document.
expect() {
  local outcome="$1" what="$2" found=pass text
  printf '%s\n' "# Page" "" "${@:3}" >docs/page.md
  text="$("$here/check_docs.sh" "$work" 2>&1)" || found=fail
  num_cases=$((num_cases + 1))
  if [[ "$found" != "$outcome" || ("$found" == fail && "$text" != *docs/page.md:*) ]]; then
    failures=$((failures + 1))
    printf 'check_docs self test: %s: expected to %s\n%s\n' "$what" "$outcome" "$text" >&2
  fi
}

expect pass "a link" "[a](ranks.md), [b](../README.md) and [c](../core/)"
expect pass "anchors" "[a](#page) [b](ranks.md#one-rank-its-threads-and-tcp) [c](ranks.md#twice-1)"
expect pass "a link to elsewhere" "[a](https://example.org/x) <https://example.org>"
expect pass "what looks like a link in backticks" '`[a](nowhere.md)`'
expect fail "a broken link" "See [there](nowhere.md)."
expect fail "a broken link, the text of which is broken over lines" "See [there," "or here](nowhere.md)."
expect fail "a broken link in a table" "| a | b |" "| --- | --- |" "| x | [y](nowhere.md) |"
expect fail "a picture that is missing" "![a](nowhere.svg)"
expect fail "a picture in HTML" '<img src="nowhere.svg" alt="a">'
expect fail "a broken anchor of another page" "[a](ranks.md#two-ranks)"
expect fail "a broken anchor of this page" "[a](#ranks)"
expect fail "a third heading of which there are two" "[a](ranks.md#twice-2)"
expect fail "a link out of the repository" "[a](../../etc/passwd)"

# Pages in folders below docs are documents, too.
mkdir docs/tutorials
printf '# Tutorial\n\n[a](../nowhere.md)\n' >docs/tutorials/first.md
num_cases=$((num_cases + 1))
text="$("$here/check_docs.sh" "$work" 2>&1 || true)"
if [[ "$text" != *docs/tutorials/first.md:3:* ]]; then
  failures=$((failures + 1))
  printf 'check_docs self test: a broken link below docs/tutorials was not found\n%s\n' "$text" >&2
fi
rm -r docs/tutorials

expect pass "paths" '`core/error.h`, `core/error.{h,h}`, `bench/*.cc`, `core/<name>.h`, `out/run`, `bench/ddp_bench`; core/error.h'
expect fail "a path in backticks" '`core/erorr.h` says'
expect fail "a path in the text" 'see core/erorr.h.'
expect fail "one of two paths" '`core/error.{h,cc}`'
expect fail "a pattern without a file" '`bench/*.py`'
expect fail "an include" '```cpp' '#include "apogee/core/erorr.h"' '```'
expect pass "commands" "    scripts/train.sh --steps 3 --ranks 2    # --no-flag" "" "    A=1 scripts/train.sh" "" \
  "    build/release/examples/01_train_gpt/01_train_gpt --ranks 4 --save-every=5" \
  "    ... --save-every 2" "    mpirun --oversubscribe -np 4 01_train_gpt --ranks 4" \
  '    apogee run -n 4 build/release/bench/ddp_bench --rounds 5' "    build/release/bin/apogee matrix --only '*|--x'"
expect pass "cmake" "    cmake --preset release -DAPOGEE_NATIVE=ON && cmake --build --preset release" \
  "    ctest --preset release -R core_shape"
expect fail "a script that is missing" "    scripts/trian.sh"
expect fail "a script that is missing, in backticks" '`scripts/trian.sh --steps 3` trains'
expect fail "a script that is not executable" "    scripts/not_executable.sh"
expect fail "a flag of a script" "    scripts/train.sh --step 3"
expect fail "a flag in a line that goes on" '    scripts/train.sh --steps 3 \' '        --no-flag'
expect fail "a flag behind a variable" '    $ JOBS=2 scripts/train.sh --no-flag'
expect fail "a flag of a second command" "    scripts/train.sh && scripts/train.sh --no-flag"
expect fail "a flag in a fence" '```sh' 'scripts/train.sh --no-flag' '```'
expect fail "a flag of a program, in backticks over two lines" 'use `01_train_gpt' '--rank 4` there'
expect fail "a flag of ..." "    build/release/examples/01_train_gpt/01_train_gpt" "    ... --rank 4"
expect fail "a flag of what mpirun starts" "    mpirun -np 4 01_train_gpt --rank 4"
expect fail "a flag of what apogee run starts" "    apogee run -n 4 01_train_gpt --rank 4"
expect fail "a flag of apogee run" "    apogee run --ranks 4 01_train_gpt"
expect fail "a subcommand" "    build/release/bin/apogee martix"
expect fail "a flag of a subcommand" '`apogee matrix --onyl x`'
expect fail "a program that is no target" "    build/release/bench/pdd_bench"
expect fail "a program elsewhere" "    build/release/examples/01_train_gpt"
expect fail "a preset" "    cmake --preset relaese"
expect fail "the folder of a preset" "    build/relaese/bin/apogee matrix"
expect fail "an option of cmake" "    cmake --preset release -DAPOGEE_NAITVE=ON"
expect fail "a test that ctest runs" "    ctest --preset release -R core_shpae"
expect pass "a quote" '<!-- quotes bench/ddp_bench.cc -->' '```cpp' 'app.add_option("--rounds");' '```'
expect fail "a quote that the file lacks" '<!-- quotes bench/ddp_bench.cc -->' '```cpp' 'app.add_option("--round");' '```'
expect fail "a quote of a part of a line" '<!-- quotes bench/ddp_bench.cc -->' '```cpp' 'add_option("--rounds");' '```'
expect fail "a quote of no file" '<!-- quotes bench/pdd_bench.cc -->' '```cpp' 'x' '```'
expect pass "names" '`core_shape_test`, `APOGEE_RANK=0`, `APOGEE_...`'
expect fail "a test" 'as `core_shpae_test` shows'
expect pass "the version" '`find_package(apogee 0.2 REQUIRED)`'
expect fail "an old version" '`find_package(apogee 0.1 REQUIRED)`'
expect fail "a variable of the environment" 'set `APOGEE_RNAK`'

if ((failures)); then
  echo "check_docs self test: $failures of $num_cases cases failed" >&2
  exit 1
fi
echo "check_docs self test: $num_cases cases"
