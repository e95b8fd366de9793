#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Doxygen's pages, before and after:

    api.py before WORK          makes WORK/layout.xml and api_header.html of layout.default.xml and
                                api_header.default.html
    api.py after WORK SITE      copies WORK/api to SITE/api; the search of the site finds the classes

The description of a class and of a file comes first, before the list of members: our headers begin with what a
reader should know. The header leads back to the site, and has its light or dark colours. Doxygen's first page, which
is empty, leads to the list of headers. Links to sections that Doxygen left out are dropped.
"""
import json
import pathlib
import re
import shutil
import sys
import xml.etree.ElementTree

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


def before(work):
    layout = description_first((work / "layout.default.xml").read_text())
    layout = layout.replace('<tab type="mainpage" visible="yes"', '<tab type="mainpage" visible="no"')
    (work / "layout.xml").write_text(layout)
    header = (work / "api_header.default.html").read_text().replace("</head>", SCRIPT + "</head>", 1)
    back = '<a href="$relpath^../reference/api.html">$projectname</a>'
    header = header.replace('<div id="projectname">$projectname', f'<div id="projectname">{back}')
    (work / "api_header.html").write_text(header)


def add_to_search(work, site):
    index = site / "search" / "search_index.json"
    content = json.loads(index.read_text())
    for compound in xml.etree.ElementTree.parse(work / "api.tag").getroot().iter("compound"):
        if compound.get("kind") in ("class", "struct"):
            name = compound.findtext("name")
            text = f"{name.split('::')[-1]}: {compound.get('kind')} in the API"
            content["docs"].append({"location": f"api/{compound.findtext('filename')}", "title": name, "text": text})
    index.write_text(json.dumps(content))


def after(work, site):
    add_to_search(work, site)
    shutil.copytree(work / "api", site / "api", dirs_exist_ok=True)
    for page in (site / "api").glob("*.html"):
        text = page.read_text()
        if "#nested-classes" in text and 'name="nested-classes"' not in text:
            page.write_text(re.sub(r'<a href="#nested-classes">[^<]*</a>(?: &#124;)?', "", text))
    (site / "api" / "index.html").write_text('<!DOCTYPE html>\n<title>API</title>\n'
                                             '<meta http-equiv="refresh" content="0; url=../reference/api.html">\n'
                                             '<a href="../reference/api.html">The public headers</a>\n')


if __name__ == "__main__":
    if sys.argv[1] == "before":
        before(pathlib.Path(sys.argv[2]))
    else:
        after(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
