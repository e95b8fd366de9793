# SPDX-License-Identifier: Apache-2.0
"""What MkDocs calls while it builds the site (mkdocs.yml)."""
import pathlib
import re

from mkdocs.exceptions import ConfigurationError


def existing(entries, pages):
    """The entries of a nav whose pages exist; these are taken from the set `pages`."""
    kept = []
    for entry in entries:
        title, value = next(iter(entry.items()))
        if isinstance(value, list):
            inside = existing(value, pages)
            kept += [{title: inside}] if inside else []
        elif value in pages:
            pages.remove(value)
            kept.append(entry)
    return kept


def on_config(config):
    folder = pathlib.Path(config["docs_dir"])
    pages = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    config["nav"] = existing(config["nav"], pages)
    missing = sorted(page for page in pages if re.match(r"(docs|reference)/.*(?<!\.\w\w)\.md", page))
    if missing:
        raise ConfigurationError(f"the nav of mkdocs.yml lacks {', '.join(missing)}")
    return config


def on_page_content(html, page, config, files):
    """A table without titles has an empty row on top."""
    return re.sub(r"<thead>\s*<tr>(\s*<th[^>]*></th>)*\s*</tr>\s*</thead>", "", html)
