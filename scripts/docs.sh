#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the documentation as a site in build/site and checks it. Needs no network:
#
#   scripts/install_deps.sh docs
#   scripts/docs.sh [--build BUILD_DIR]
#   python3 -m http.server --directory build/site     # search works over http only
#
# The site has every page of docs/, the READMEs, and a reference: the public headers (Doxygen), and with the
# programs of a build folder the options of optimizers and the flags of programs, as these print them. The default
# for --build is build/release or else build/test; without one these pages are left out.
#
# Checks that all links and anchors of the site resolve (check_site.py), that sentences are short, and that no page
# has more than 1,200 words beside tables and code (sentence_lengths.py). mkdocs.yml has the order of the pages; scripts/site/ has the parts.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build_dir=""
while (($#)); do
  case "$1" in
    --build)
      build_dir="${2:?--build needs a folder}"
      [[ -x "$build_dir/bin/apogee" ]] || {
        echo "docs: $build_dir/bin/apogee is no program; build it first" >&2
        exit 2
      }
      build_dir="$(cd "$build_dir" && pwd)"
      shift 2
      ;;
    *)
      echo "usage: scripts/docs.sh [--build BUILD_DIR]" >&2
      exit 2
      ;;
  esac
done
cd "$ROOT"
for program in mkdocs doxygen; do
  command -v "$program" >/dev/null || {
    echo "docs: $program is missing: scripts/install_deps.sh docs" >&2
    exit 1
  }
done
for candidate in build/release build/test; do
  if [[ -z "$build_dir" && -x "$candidate/bin/apogee" ]]; then build_dir="$candidate"; fi
done

work="$ROOT/build/docs"
export APOGEE_SITE_ROOT="$ROOT" APOGEE_SITE_WORK="$work"
mkdir -p "$work"

phase "headers"
python3 scripts/site/headers.py "$ROOT" "$work"
rm -rf "$work/api"
doxygen -l "$work/layout.default.xml"
doxygen -w html "$work/api_header.default.html" "$work/api_footer.html" "$work/api_default.css" >/dev/null 2>&1
python3 scripts/site/api.py before "$work"
doxygen scripts/site/Doxyfile

phase "pages"
python3 scripts/site/pages.py "$ROOT" "$work"
if [[ -n "$build_dir" ]]; then
  python3 scripts/site/reference.py "$ROOT" "$work" "$build_dir"
else
  echo "docs: no build folder with bin/apogee, so without the options of optimizers and the flags of programs"
  python3 scripts/site/reference.py "$ROOT" "$work"
fi

phase "site"
# What MkDocs says of links into api is no news: it is copied below, and check_site.py knows it.
mkdocs build --quiet
python3 scripts/site/api.py after "$work" build/site

phase "checks"
python3 scripts/check_site.py build/site
python3 scripts/sentence_lengths.py
print_phases
echo "docs: build/site/index.html"
