#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes what Doxygen writes as its defaults: `doxygen_layout.py WORK` reads layout.default.xml and api_header.default.html
in WORK, and writes layout.xml and api_header.html.

The description of a class and of a file comes first, before the list of members: our headers begin with what a reader
should know. The header leads back to the site, and has its light or dark colours.
"""
import pathlib
import re
import sys

SCRIPT = """<script type="text/javascript">
  // The choice that the pages of the site keep; else that of the system.
  (function () {
    var dark = matchMedia("(prefers-color-scheme: dark)").matches;
    for (var i = 0; i < localStorage.length; i++) {
      if (/__palette$/.test(localStorage.key(i))) {
        dark = JSON.parse(localStorage.getItem(localStorage.key(i))).color.scheme === "slate";
      }
    }
    document.documentElement.className = dark ? "dark" : "light";
  })();
</script>
"""


def description_first(layout):
    """In the parts <class>, <namespace> and <file>."""
    def move(match):
        part = re.sub(r"\n *<detaileddescription[^\n]*", "", match.group(0))
        return re.sub(r"( *)<briefdescription[^\n]*", r'\1<detaileddescription title=""/>', part, count=1)

    return re.sub(r"<(class|namespace|file)>.*?</\1>", move, layout, flags=re.S)


def main():
    work = pathlib.Path(sys.argv[1])
    (work / "layout.xml").write_text(description_first((work / "layout.default.xml").read_text()))
    header = (work / "api_header.default.html").read_text()
    header = header.replace("</head>", SCRIPT + "</head>", 1)
    header = header.replace('<div id="projectname">$projectname', '<div id="projectname"><a href="$relpath^../index.html">$projectname</a>')
    (work / "api_header.html").write_text(header)


if __name__ == "__main__":
    main()
