# SPDX-License-Identifier: Apache-2.0
"""What MkDocs calls while it builds the site (mkdocs.yml)."""
import fnmatch
import pathlib
import re


def existing(entries, pages):
    """The entries of a nav whose pages exist; a pattern becomes the pages that match it, in order of their names."""
    kept = []
    for entry in entries:
        title, value = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(value, list):
            inside = existing(value, pages)
            kept += [{title: inside}] if inside else []
        elif title:
            kept += [entry] if value in pages else []
        else:
            kept += fnmatch.filter(pages, value)
    return kept


def on_config(config):
    folder = pathlib.Path(config["docs_dir"])
    config["nav"] = existing(config["nav"], sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md")))
    return config


def on_page_content(html, page, config, files):
    """A table without titles has an empty row on top."""
    return re.sub(r"<thead>\s*<tr>(\s*<th[^>]*></th>)*\s*</tr>\s*</thead>", "", html)
