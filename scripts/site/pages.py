#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the sources of the site into WORK/pages, for MkDocs:

    pages.py ROOT WORK

README.md, the documents, and every file of the repository that they link to. Pages keep their paths. A link to a
public header becomes one to its page in the reference (WORK/api.tag says which), a link to another source one to a
page with its text, a link to a folder one to its README.md or to a page with its files. Ends with 1 if a link leads
nowhere.
"""
import functools
import os
import pathlib
import re
import shutil
import sys
import xml.etree.ElementTree

import github_markdown
import headers

LANGUAGES = {".cc": "cpp", ".h": "cpp", ".cu": "cuda", ".cuh": "cuda", ".sh": "bash", ".py": "python",
             ".cmake": "cmake", ".json": "json", ".awk": "awk"}
MEDIA = {".svg", ".png", ".jpg", ".gif"}


def api_pages(root, work):
    """From a public header's path to its page in the reference."""
    pages = {}
    tags = work / "api.tag"
    if not tags.exists():
        return pages
    public = set(headers.public_headers(root))
    include = f"{(work / 'include' / 'apogee').resolve()}/"
    for compound in xml.etree.ElementTree.parse(tags).getroot().iter("compound"):
        if compound.get("kind") == "file":
            path = (compound.findtext("path") + compound.findtext("name")).removeprefix(include)
            path = "driver/apogee.h" if path == "apogee.h" else path
            if path in public:
                pages[path] = f"api/{compound.findtext('filename')}"
    return pages


class Site:
    def __init__(self, root, work):
        self.root = root
        self.pages = work / "pages"
        self.api = api_pages(root, work)
        self.todo = []
        self.done = set()
        self.wrong = []

    def write(self, path, text):
        target = self.pages / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def want(self, path):
        if path not in self.done:
            self.done.add(path)
            self.todo.append(path)
        return path

    def place(self, target):
        """Where the site has what is at `target` in the repository; None: nowhere."""
        at = self.root / target
        if target in self.api:
            return self.api[target]
        if at.is_dir():
            return self.want(f"{target}/README.md" if (at / "README.md").exists() else f"{target}/")
        if not at.is_file():
            return None
        self.want(target)
        return target if at.suffix == ".md" or at.suffix in MEDIA else f"{target}.md"

    def labelled(self, page, label, target):
        """A link of a page as the site has it. A label that is a document's file name becomes words."""
        if re.fullmatch(r"[\w/.-]+\.md", label):
            label = pathlib.PurePath(label).stem.replace("_", " ")
        return label, self.link(page, target)

    def code(self, page, span):
        """A code span that is the path of a public header leads to its page in the reference."""
        header = span.strip("`")
        if header not in self.api:
            return span
        return f"[{span}]({self.link(page, os.path.relpath(header, os.path.dirname(page) or '.'))})"

    def link(self, page, target):
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return target
        found = os.path.normpath(os.path.join(os.path.dirname(page), path))
        place = None if found.startswith("..") else self.place(found)
        if place is None:
            self.wrong.append(f"{page}: the link {target} leads nowhere")
            return target
        place += "index.md" if place.endswith("/") else ""
        # What lies in api/ MkDocs does not see: the path is the one between the finished pages, which is the same.
        return os.path.relpath(place, os.path.dirname(page) or ".") + (f"#{anchor}" if anchor else "")

    def stage(self, path):
        source = self.root / path
        if path.endswith("/"):
            names = sorted(file.relative_to(source).as_posix() for file in source.rglob("*") if file.is_file())
            rows = [f"- [{name}]({self.link(path + 'index.md', name)})" for name in names if "__pycache__" not in name]
            self.write(path + "index.md", f"# {path}\n\nThe files of this folder.\n\n" + "\n".join(rows) + "\n")
        elif source.suffix == ".md":
            link, code = functools.partial(self.labelled, path), functools.partial(self.code, path)
            self.write(path, github_markdown.to_python_markdown(source.read_text(), link, code))
        elif source.suffix in MEDIA:
            (self.pages / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, self.pages / path)
        else:
            language = LANGUAGES.get(source.suffix, "cmake" if source.name == "CMakeLists.txt" else "text")
            text = source.read_text(errors="replace").rstrip("\n")
            self.write(f"{path}.md", f"---\nsource: true\n---\n\n# {path}\n\n~~~~~~{language}\n{text}\n~~~~~~\n")


def main():
    root, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    site = Site(root, work)
    shutil.rmtree(site.pages, ignore_errors=True)
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]:
        if (root / name).exists():
            site.want(name)
    for page in sorted((root / "docs").rglob("*.md")):
        site.want(page.relative_to(root).as_posix())
    while site.todo:
        site.stage(site.todo.pop())
    for style in (pathlib.Path(__file__).parent).glob("site.css"):
        site.write("site.css", style.read_text())
    print("\n".join(site.wrong), end="\n" if site.wrong else "")
    print(f"pages: {len(site.done)} files of the repository, {len(site.wrong)} links lead nowhere")
    return 1 if site.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
