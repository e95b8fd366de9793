#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the HTML of a site: each link, picture, style and script leads to a file of it, and each anchor exists.

    check_site.py SITE [--external]

Links out of the site are counted; --external prints them. Nothing is fetched, but a style, script, font or picture
that a page would fetch from elsewhere is an error. Also, the index of the search must have the words of WORDS,
which users look for first. Prints one line per finding, and exits with 1 if there is any.
"""
import html
import json
import os
import pathlib
import re
import sys
import urllib.parse

WORDS = ["gradient accumulation", "slurm", "oom", "hang"]

TAG = re.compile(r"<([a-zA-Z][a-zA-Z0-9]*)\b((?:[^<>\"']|\"[^\"]*\"|'[^']*')*)>")
ATTRIBUTE = re.compile(r"""\b(href|src|srcset|id|name)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
HIDDEN = re.compile(r"<!--.*?-->|<script\b(?![^>]*\bsrc=)[^>]*>.*?</script>|<style\b.*?</style>", re.S)


class Page:
    def __init__(self, text):
        self.anchors = {""}
        self.links = []  # (tag, target)
        for tag, attributes in TAG.findall(HIDDEN.sub("", text)):
            for name, first, second in ATTRIBUTE.findall(attributes):
                value = html.unescape(first or second)
                if name in ("id", "name"):
                    self.anchors.add(value)
                elif name == "srcset":
                    self.links += [(tag.lower(), one.split()[0]) for one in value.split(",") if one.strip()]
                else:
                    self.links.append((tag.lower(), value))


def check(site):
    """Returns (findings, external links, links within the site)."""
    files = {os.path.relpath(os.path.join(folder, name), site) for folder, _, names in os.walk(site) for name in names}
    pages = {name: Page((site / name).read_text(errors="replace")) for name in sorted(files) if name.endswith(".html")}
    findings, external, num_links = [], {}, 0
    if not pages:
        findings.append(f"{site} has no page")
    for name, page in pages.items():
        for tag, target in page.links:
            if re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.I):
                if tag not in ("a", "area") and not target.startswith(("data:", "javascript:")):
                    findings.append(f"{name}: <{tag}> would fetch {target}")
                elif re.match(r"https?:|//", target, re.I):
                    external.setdefault(target, name)
                continue
            num_links += 1
            path, _, anchor = target.partition("#")
            path = urllib.parse.unquote(path.partition("?")[0])
            # 404.html is shown at any address, so its links begin with /.
            base = "" if path.startswith("/") else os.path.dirname(name)
            found = os.path.normpath(os.path.join(base, path.lstrip("/"))) if path else name
            if found not in files and f"{found}/index.html".removeprefix("./") in files:
                found = f"{found}/index.html".removeprefix("./")
            if found not in files:
                findings.append(f"{name}: {target}: no such file")
            elif anchor and found in pages and urllib.parse.unquote(anchor) not in pages[found].anchors:
                findings.append(f"{name}: {target}: no such anchor")
    return findings, external, num_links, len(pages)


def check_search(site):
    index = site / "search" / "search_index.json"
    if not index.exists():
        return [f"{index}: the site has no search"]
    text = " ".join(f"{entry['title']} {entry['text']}" for entry in json.loads(index.read_text())["docs"]).lower()
    return [f"{index}: nothing has the words '{words}'" for words in WORDS
            if not re.search(rf"\b{words}\b", re.sub(r"\s+", " ", text))]


def main():
    site = pathlib.Path(sys.argv[1])
    findings, external, num_links, num_pages = check(site)
    findings += check_search(site)
    if "--external" in sys.argv[2:]:
        print("\n".join(f"{link}  ({name})" for link, name in sorted(external.items())))
    print("\n".join(findings), end="\n" if findings else "")
    print(f"check_site: {num_pages} pages, {num_links} links within the site, {len(external)} to elsewhere, "
          f"{len(findings)} wrong")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
