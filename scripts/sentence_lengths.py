#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the prose of the documents: words per sentence, and words.

    sentence_lengths.py [FILE...]     default: README.md, CONTRIBUTING.md, docs/ and the READMEs of examples

Prints, for each page, its average words per sentence, its longest sentence and its words. Tables, code, headings
and list items that are no sentences (terms, links) do not count. Code within a sentence is one word. Exits with 1
if a page has more than 25 words per sentence on average; reports pages of more than 1,200 words.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "site"))
import github_markdown  # noqa: E402

MAX_AVERAGE = 25
MAX_WORDS = 1200
END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(`\[]*[A-Z0-9`])")


def paragraphs(text):
    """The paragraphs and list items of a page, as (is a list item, text)."""
    found, current, item = [], [], False

    def end():
        if current:
            found.append((item, " ".join(current)))
            current.clear()

    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    for kind, line in github_markdown.blocks(text.split("\n")):
        stripped = line.strip()
        if kind == "code" or not stripped or stripped.startswith(("#", "|", "<", "![")):
            end()
            continue
        marker = github_markdown.ITEM.match(line)
        if marker:
            end()
            item = True
            stripped = line[marker.end():]
        elif not current:
            item = line.startswith(" ") and item
        current.append(stripped)
    end()
    return found


def plain(text):
    """Without Markdown: code and links are words."""
    text = re.sub(r"(`+).+?\1", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]*>", "", text)
    return text.replace("*", "").replace("e.g.", "eg").replace("i.e.", "ie").replace("et al.", "et al")


def sentences(text):
    """The number of words of each sentence of a page."""
    lengths = []
    for item, paragraph in paragraphs(text):
        paragraph = plain(paragraph)
        if item and not re.search(r"[.!?:;]\"?$", paragraph.strip()):
            continue
        for sentence in END.split(paragraph):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if words:
                lengths.append((len(words), sentence))
    return lengths


def pages():
    root = pathlib.Path(__file__).resolve().parents[1]
    named = [root / "README.md", root / "CONTRIBUTING.md", *sorted(root.glob("examples/**/README.md"))]
    return named + sorted(root.glob("docs/**/*.md"))


def main():
    wrong, long_pages = [], []
    print("words per sentence, longest, words   page")
    for page in [pathlib.Path(name) for name in sys.argv[1:]] or pages():
        lengths = sentences(page.read_text())
        num_words = sum(length for length, _ in lengths)
        average = num_words / max(len(lengths), 1)
        longest = max(lengths, default=(0, ""))
        print(f"{average:18.1f} {longest[0]:8} {num_words:6}   {page}")
        if average > MAX_AVERAGE:
            wrong.append(f"{page}: {average:.1f} words per sentence; at most {MAX_AVERAGE} are allowed. "
                         f"The longest has {longest[0]}: {longest[1]}")
        if num_words > MAX_WORDS:
            long_pages.append(f"{page}: {num_words} words beside tables and code; split it if it has two subjects")
    print("\n".join(long_pages + wrong))
    print(f"sentence_lengths: {len(wrong)} pages with long sentences, {len(long_pages)} with more than {MAX_WORDS} "
          "words")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
