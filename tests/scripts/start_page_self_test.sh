#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# That scripts/start_page.sh finds the commands and files of a page, runs them in their order and folders, and fails when
# one fails or when they take too long. It runs here, on a small repository, without a build.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/scripts" "$work/tree/docs"
cp "$root/scripts/start_page.sh" "$root/scripts/common.sh" "$work/tree/scripts"
cd "$work/tree"
export LOG="$work/log"
cat >scripts/quickstart.sh <<'END'
#!/usr/bin/env bash
echo "quickstart $*" >>"$LOG"
sleep "${SLEEP:-0}"
END
chmod +x scripts/quickstart.sh
cat >docs/start.md <<'END'
# Start

    sudo apt-get install -y git
    scripts/quickstart.sh      # a comment

Output, which is no command:

    text: a line
    scripts/quickstart.sh of the output

Again:

    scripts/quickstart.sh --steps 200 --report

## A project

    cd . && mkdir DIR
    export A=DIR/x

<!-- quotes tests/main.cc -->
```cpp
int main() {}
```

    cd . && cp main.cc DIR && test ! -e docs
    ./missing || cd ..

## Then

    cd docs && test -e start.md
END
git init -q . && git add -A && git -c user.name=t -c user.email=t@t commit -qm t

fail() {
  echo "start_page self test: $1"
  cat "$work/out"
  exit 1
}
scripts/start_page.sh --list >"$work/out"
grep -q "^project  cd . && cp main.cc /root/installed && test ! -e docs$" "$work/out" || fail "--list has not the command"
grep -q "writes main.cc, 1 lines" "$work/out" || fail "--list has not the file"
scripts/start_page.sh --here >"$work/out" 2>&1 || fail "a good page fails"
[[ "$(cat "$LOG")" == $'quickstart \nquickstart --report --steps 20' ]] || fail "the script ran otherwise: $(cat "$LOG")"
rm "$LOG"
scripts/start_page.sh --here --stop-before 'cd *' >"$work/out" 2>&1 || fail "--stop-before fails"
grep -q "stopped before: cd . && mkdir" "$work/out" || fail "--stop-before does not stop"
if SLEEP=2 scripts/start_page.sh --here --limit 0 --stop-before 'cd *' >"$work/out" 2>&1; then fail "the limit is not held"; fi
grep -q "FAILED: too long" "$work/out" || fail "the limit has no message"
sed -i 's/test -e start.md/test -e gone.md/' docs/start.md
if scripts/start_page.sh --here >"$work/out" 2>&1; then fail "a command that fails is not found"; fi
grep -q "FAILED with 1: cd docs && test -e gone.md" "$work/out" || fail "a command that fails is not named"
echo "start_page self test: good"
