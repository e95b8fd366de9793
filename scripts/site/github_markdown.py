# SPDX-License-Identifier: Apache-2.0
"""Our pages are Markdown as GitHub reads it. Python-Markdown, which MkDocs uses, differs; this module bridges that:

    to_python_markdown(text, link, code)
        link(label, target): the label and the target to write for those of a link
        code(text): what to write for a code span outside links, with its backticks

Headings get the anchors of GitHub. Lists get their blank line and four blanks per level. `\\|` in the code of a table
becomes `|`. HTML comments go. Code blocks stay as they are, but for their indentation within lists.
"""
import re

FENCE = re.compile(r"^( *)(```+|~~~+)")
ITEM = re.compile(r"^( *)([-*+]|\d+[.)])( +)(?=\S)")
LINK = re.compile(r"(!?\[)((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]*)((?:\s+\"[^\"]*\")?\))")
ATTRIBUTE = re.compile(r"""\b(src|href|srcset)="([^"]*)\"""")


def slug(heading):
    """The anchor that GitHub gives a heading, without the number of a repeated one."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", ""))
    return re.sub(r"[^\w\- ]", "", text.replace("*", "").lower()).replace(" ", "-")


def blocks(lines):
    """Yields (kind, line): kind is 'code' for the lines of indented blocks and of fences, with these; else 'text'."""
    fence = None
    indented = False
    blank = True
    in_list = False
    for line in lines:
        match = FENCE.match(line)
        if fence:
            yield "code", line
            if match and match.group(2).startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
                blank = False
            continue
        if match:
            fence = match.group(2)
            yield "code", line
            continue
        if not line.strip():
            blank = True
            yield ("code" if indented else "text"), line
            continue
        item = ITEM.match(line) and (in_list or not line.startswith("    "))
        if item and not indented:
            in_list = True
        elif blank and not line.startswith(" "):
            in_list = False
        indented = (blank or indented) and line.startswith("      " if in_list else "    ") and not item
        blank = False
        yield ("code" if indented else "text"), line


def rewrite_links(text, link, code):
    """Applies `link` and `code` to a paragraph."""
    spans = []

    def hide(match):
        spans.append(match.group(0))
        return f"\0{len(spans) - 1}\0"

    def show(hidden, change=lambda span: span):
        return re.sub("\0(\\d+)\0", lambda match: change(spans[int(match.group(1))]), hidden)

    def write(match):
        label, target = link(show(match.group(2)), match.group(3))
        spans.append(f"{match.group(1)}{label}]({target}{match.group(4)}")
        return f"\0{len(spans) - 1}\0"

    text = re.sub(r"(`+)(?:(?!\1).|\n)+?\1", hide, text)
    text = LINK.sub(write, text)
    text = ATTRIBUTE.sub(lambda match: f'{match.group(1)}="{link("", match.group(2))[1]}"', text)
    return show(text, lambda span: code(span) if span.startswith("`") else span)


def reindent(lines):
    """Lists with four blanks per level, and a blank line before each list."""
    out = []
    levels = []  # (indentation of the marker, of the text behind it) of the open items
    was_in_list = False
    for kind, line in blocks(lines):
        if not line.strip():
            out.append(line)
            continue
        indent = len(line) - len(line.lstrip(" "))
        match = ITEM.match(line) if kind == "text" else None
        after_blank = not out or not out[-1].strip()
        if match:
            while levels and indent < levels[-1][1]:
                levels.pop()
            if not after_blank and not levels and not was_in_list:
                out.append("")
            out.append("    " * len(levels) + line.lstrip(" "))
            levels.append((indent, match.end()))
        else:
            if after_blank or kind == "code" or line.startswith("#"):
                while levels and indent < levels[-1][1]:
                    levels.pop()
            inside = levels[-1][1] if levels else 0
            rest = max(indent - inside, 0) if kind == "code" or after_blank else 0
            keep = indent if not levels else 4 * len(levels) + rest
            out.append(" " * keep + line.lstrip(" "))
        was_in_list = bool(levels)
    return out


def to_python_markdown(text, link, code):
    text = re.sub(r"^<!--.*?-->\n", "", text, flags=re.M | re.S)
    out = []
    seen = {}
    paragraph = []

    def end_paragraph():
        if paragraph:
            out.extend(rewrite_links("\n".join(paragraph), link, code).split("\n"))
            paragraph.clear()

    for kind, line in blocks(reindent(text.split("\n"))):
        heading = re.match(r"^(#+) +(.*?)( +#+)? *$", line)
        if kind == "code":
            end_paragraph()
            out.append(line)
        elif heading:
            end_paragraph()
            name = slug(heading.group(2))
            number = seen.get(name, 0)
            seen[name] = number + 1
            name += f"-{number}" if number else ""
            words = rewrite_links(heading.group(2), link, lambda span: span)
            out += ["", f"{heading.group(1)} {words} {{: #{name} }}", ""]
        elif line.startswith("|"):
            end_paragraph()
            if out and out[-1].strip() and not out[-1].startswith("|"):
                out.append("")
            out.append(rewrite_links(line, link, lambda span: code(span.replace("\\|", "|"))))
        else:
            paragraph.append(line)
            if not line.strip():
                end_paragraph()
    end_paragraph()
    return "\n".join(out)
