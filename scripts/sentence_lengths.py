#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the prose of the documents: words per sentence, words of a page, lines of README.md.

    sentence_lengths.py [FILE...]     default: README.md, CONTRIBUTING.md, docs/ and the READMEs of examples

Prints, for each page, its average words per sentence, the words of its longest sentence, and its words. Tables, code
and headings do not count, and list items that are no sentences (terms, links) count as words only. Code within a
sentence is one word. Exits with 1 if a page has more than 25 words per sentence on average or more than 1,200 words, or
if README.md has more than 120 lines. A page whose first paragraph begins with "Written by `COMMAND" is generated, and
may have more words.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "site"))
import github_markdown  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
MAX_AVERAGE = 25
MAX_WORDS = 1200
MAX_README_LINES = 120
GENERATED = re.compile(r"\A# [^\n]*\n+Written by `")
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
    text = re.sub(r"(`+).+?\1", "Code", text)  # a sentence may begin with it
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]*>", "", text)
    return text.replace("*", "").replace("e.g.", "eg").replace("i.e.", "ie").replace("et al.", "et al")


def words(text):
    return [word for word in text.split() if re.search(r"\w", word)]


def sentences(text):
    """The number of words of each sentence of a page."""
    lengths = []
    for item, paragraph in paragraphs(text):
        paragraph = plain(paragraph)
        if item and not re.search(r"[.!?:;]\"?$", paragraph.strip()):
            continue
        for sentence in END.split(paragraph):
            if words(sentence):
                lengths.append((len(words(sentence)), sentence))
    return lengths


def pages():
    named = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("examples/**/README.md"))]
    return named + sorted(ROOT.glob("docs/**/*.md"))


def main():
    wrong = []
    print("words per sentence, longest, words   page")
    for page in [pathlib.Path(name) for name in sys.argv[1:]] or pages():
        text = page.read_text()
        lengths = sentences(text)
        num_words = sum(len(words(plain(paragraph))) for _, paragraph in paragraphs(text))
        average = sum(length for length, _ in lengths) / max(len(lengths), 1)
        longest = max(lengths, default=(0, ""))
        print(f"{average:18.1f} {longest[0]:8} {num_words:6}   {page}")
        if average > MAX_AVERAGE:
            wrong.append(f"{page}: {average:.1f} words per sentence; at most {MAX_AVERAGE} are allowed. "
                         f"The longest has {longest[0]}: {longest[1]}")
        if num_words > MAX_WORDS and not GENERATED.match(text):
            wrong.append(f"{page}: {num_words} words beside tables and code; at most {MAX_WORDS} are allowed. "
                         "Make a page of each subject")
        num_lines = text.count("\n")
        if page.name == "README.md" and page.resolve().parent == ROOT and num_lines > MAX_README_LINES:
            wrong.append(f"{page}: {num_lines} lines; at most {MAX_README_LINES} are allowed. Move parts into docs/")
    print("\n".join(wrong), end="\n" if wrong else "")
    print(f"sentence_lengths: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
