#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The parts of scripts/docs.sh on small inputs: check_site.py and sentence_lengths.py fail on what they forbid, and on
# nothing else; Markdown, headers and --help come out as the site needs them; MkDocs builds a small tree without a
# broken link.
#
#   tests/docs/site_self_test.sh [PUBLIC_HEADERS]     a build's public_headers.txt
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failures=0
num_cases=0

if ! command -v mkdocs >/dev/null || ! command -v python3 >/dev/null; then
  echo "[  SKIPPED ] site_self_test (0 ms)"  # counted by scripts/run_ctest.sh
  exit 0
fi

# expect pass|fail WHAT COMMAND...
expect() {
  local outcome="$1" what="$2" found=pass text
  text="$("${@:3}" 2>&1)" || found=fail
  num_cases=$((num_cases + 1))
  if [[ "$found" != "$outcome" || "$text" == *Traceback* ]]; then
    failures=$((failures + 1))
    printf 'site self test: %s: expected to %s\n%s\n' "$what" "$outcome" "$text" >&2
  fi
}
# same WHAT WANTED GOT
same() {
  num_cases=$((num_cases + 1))
  if [[ "$2" != "$3" ]]; then
    failures=$((failures + 1))
    printf 'site self test: %s: wanted\n%s\ngot\n%s\n' "$@" >&2
  fi
}

# --- Links of the HTML.

site="$work/html"
mkdir -p "$site/search" "$site/docs/folder"
index() { printf '{"docs": [{"title": "Words", "text": "%s"}]}' "$1" >"$site/search/search_index.json"; }
index "gradient\\naccumulation, Slurm, OOM, it hangs or may hang"
printf '<h1 id="page">x</h1><a name="old">y</a>' >"$site/docs/a b.html"
printf '<h1 id="f">x</h1>' >"$site/docs/folder/index.html"
printf 'x' >"$site/picture.svg"
# page OUTCOME WHAT HTML
page() {
  printf '%s' "$3" >"$site/index.html"
  expect "$1" "$2" python3 "$root/scripts/check_site.py" "$site"
}
page pass "links" '<a href="docs/a%20b.html#page">a</a><a href="docs/a b.html#old">a</a><a href="docs/folder/#f">a</a><a href=".">a</a>'
page pass "a link to elsewhere" '<a href="https://example.org/#x">a</a><a href="mailto:a@example.org">b</a>'
page pass "text, scripts and comments" '&lt;a href="x"&gt;<script>"<a href=\"x\">"</script><!-- <a href="x"> -->'
page fail "a link to no file" '<a class="b" href="docs/c.html">a</a>'
page fail "a link to no file in other quotes" "<a href='docs/c.html'>a</a>"
page fail "a link to a folder without a page" '<a href="docs/">a</a>'
page fail "a link out of the site" '<a href="../index.html">a</a>'
page fail "an anchor of this page" '<a href="#nowhere">a</a>'
page fail "an anchor of another page" '<a href="docs/a%20b.html#nowhere">a</a>'
page fail "a picture" '<img src="docs/picture.svg">'
page fail "a second picture" '<source srcset="picture.svg 1x, docs/picture.svg 2x">'
page fail "a script from elsewhere" '<script src="https://example.org/x.js"></script>'
page fail "a style from elsewhere" '<link rel="stylesheet" href="//example.org/x.css">'
index "gradient accumulation, Slurm, hang, bloom"
page fail "a word that the search lacks" '<a href=".">a</a>'
rm "$site/search/search_index.json"
page fail "no search" '<a href=".">a</a>'

# --- Sentences.

words() { printf 'word %.0s' $(seq 2 "$1") && printf 'word.'; }
prose() {
  printf '%b' "$3" >"$work/prose.md"
  expect "$1" "$2" python3 "$root/scripts/sentence_lengths.py" "$work/prose.md"
}
prose pass "short sentences" "# Title\n\nWord $(words 24)\n"
prose fail "a long sentence" "# Title\n\nWord $(words 25)\n"
prose pass "a long and a short one" "Word $(words 39) Word $(words 9)\n"
prose pass "a sentence that begins with code" "Word $(words 20) \`code\` $(words 20)\n"
prose fail "long sentences of a list" "- Word $(words 29)\n- Word $(words 29)\n"
many="$(words 60)"
prose pass "tables, code, headings and terms" "# $many\n\n| $many |\n\n    $many\n\n\`\`\`\n$many\n\`\`\`\n\n- ${many%.}\n\nA word.\n"
prose pass "code and links are words" "Call \`a b c d e f g h i j k l m n o p q r s t u v w x y z\` [now](../a/b.md).\n"
sentences() { for _ in $(seq "$1"); do echo "Word $(words 9)"; done; }
prose pass "a page of 1,200 words" "# $many\n\n$(sentences 120)\n\n| $many |\n"
prose pass "a generated page" "# Title\n\nWritten by \`a b\`. $(sentences 130)\n"
prose fail "words of list items that are no sentences" "$(sentences 118)\n\n- ${many%.}\n"
prose fail "a page of 1,300 words" "$(sentences 130)\n"
same "its name is reported" 1 "$(python3 "$root/scripts/sentence_lengths.py" "$work/prose.md" | grep -c "^$work/prose.md: 1300 words beside")"
mkdir -p "$work/lines/scripts"
cp -r "$root/scripts/sentence_lengths.py" "$root/scripts/site" "$work/lines/scripts"
# lines OUTCOME NUMBER: of README.md.
lines() {
  seq "$2" | sed 's/.*/A line.\n/' | head -n "$2" >"$work/lines/README.md"
  expect "$1" "a README.md of $2 lines" python3 "$work/lines/scripts/sentence_lengths.py" "$work/lines/README.md"
}
lines pass 120
lines fail 121

# --- Markdown.

markdown() {
  PYTHONPATH="$root/scripts/site" python3 -c '
import sys, github_markdown
print(github_markdown.to_python_markdown(sys.stdin.read(), lambda label, to: (label, to.upper()), lambda span: span).strip())' <<<"$1"
}
same "headings" $'# One `rank`, *TCP* {: #one-rank-tcp }\n\n\n\n## A {: #a }\n\n\n## A {: #a-1 }' "$(markdown $'# One `rank`, *TCP*\n\n## A\n## A')"
same "links" '[a](B) `[a](b)` ![a [b]](C) <img src="D"> [`a`](B)' "$(markdown '[a](b) `[a](b)` ![a [b]](c) <img src="d"> [`a`](b)')"
same "a link over lines" $'[a\nb](C)' "$(markdown $'[a\nb](c)')"
same "a list below a paragraph, with a level" $'A:\n\n- b\n    c\n    - d\n\n        e\n\nf' "$(markdown $'A:\n- b\n  c\n  - d\n\n    e\n\nf')"
same "a fence in a list" $'1. a\n\n    ```sh\n      x [a](b)\n    ```' "$(markdown $'1. a\n\n   ```sh\n     x [a](b)\n   ```')"
same "code" $'A:\n\n    - x [a](b)\n    # y' "$(markdown $'A:\n\n    - x [a](b)\n    # y')"
same "a table" $'A\n\n| `a|b` | [c](D) |\n| --- | --- |' "$(markdown $'A\n| `a\\|b` | [c](d) |\n| --- | --- |')"

# --- Headers.

cat >"$work/in.h" <<'END'
// SPDX-License-Identifier: Apache-2.0

// Thing: holds <x> & --flags.
//
//   Thing thing;
//
// - one
//   item
#ifndef GUARD
// No documentation.

class Other;  // other.h
// Two.
struct Two {
  int a;  // first
          // still
  // of b
  int b;
};

class Thing {
END
cat >"$work/wanted.h" <<'END'
// SPDX-License-Identifier: Apache-2.0

/// @file
/// Thing: holds \<x\> \& \--flags.
///
/// @code{.cpp}
/// Thing thing;
/// @endcode
///
/// - one
///   item
#ifndef GUARD
// No documentation.

class Other;  // other.h
/// Two.
struct Two {
  int a;  ///< first
          ///< still
  /// of b
  int b;
};

/// Thing: holds \<x\> \& \--flags.
///
/// @code{.cpp}
/// Thing thing;
/// @endcode
///
/// - one
///   item
class Thing {
END
same "comments of a header" "$(<"$work/wanted.h")" "$(awk -f "$root/scripts/site/doxygen_filter.awk" "$work/in.h")"
if [[ -n "${1-}" ]]; then
  expect pass "the public headers" diff <(sort "$1") <(python3 "$root/scripts/site/headers.py" | sort)
fi

# --- Flags.

help="$(printf 'Does it\nUsage: x/prog [OPTIONS]\n\nOptions:\n  -h,--help                   Help\n  --short INT=1               Of | one\n  -l,--long TEXT:{a,b} REQUIRED\n%30sOf two\n\nEnds with 0\n' '')"
same "flags" $'### prog\n\nDoes it\n\n    prog [OPTIONS]\n\n**Options**\n\n| | |\n| --- | --- |\n| `--short INT=1` | Of \\| one |\n| `-l,--long TEXT:{a,b} REQUIRED` | Of two |\n\nEnds with 0' \
  "$(PYTHONPATH="$root/scripts/site" python3 -c '
import sys, reference
print("\n".join(reference.flags_section("prog", sys.argv[1], 3)))' "$help")"

# --- All of it, but for Doxygen.

tree="$work/tree"
mkdir -p "$tree/docs/tutorials" "$tree/core" "$tree/scripts/site"
cp "$root/mkdocs.yml" "$tree"
cp "$root"/scripts/site/hooks.py "$tree/scripts/site"
printf '# Home\n\nSlurm, OOM, hang: [a](docs/zero.md#a-b) [core](core/) [source](core/a.cc)\n' >"$tree/README.md"
printf '# ZeRO\n\n## A *b*\n\nGradient accumulation, [home](../README.md), [source](../core/a.cc), [`b`](tutorials/fine_tune.md)\n' >"$tree/docs/zero.md"
printf '# B\n' >"$tree/docs/tutorials/fine_tune.md"
printf '// A [link](nowhere.md)\nint a;\n' >"$tree/core/a.cc"
build_tree() {
  python3 "$root/scripts/site/pages.py" "$tree" "$tree/build/docs" && (cd "$tree" && mkdocs build --quiet) &&
    python3 "$root/scripts/check_site.py" "$tree/build/site"
}
expect pass "a small site" build_tree
same "its tutorials" 1 "$(grep -c '>Tutorials<\|Tutorials$' "$tree/build/site/docs/tutorials/fine_tune.html" | sed 's/[1-9].*/1/')"
printf '# New\n' >"$tree/docs/new.md"
expect fail "a page that the nav lacks" build_tree
printf '[a](nowhere.md)\n' >>"$tree/README.md"
expect fail "a link of a document to nowhere" python3 "$root/scripts/site/pages.py" "$tree" "$tree/build/docs"

if ((failures)); then
  echo "site self test: $failures of $num_cases cases failed" >&2
  exit 1
fi
echo "site self test: $num_cases cases"
