#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the generated pages of the reference to WORK/pages/reference:

    reference.py ROOT WORK [BUILD_DIR]

api.md lists the public headers. With a build folder options.md has the options of every optimizer, as
`apogee options` prints them, commands.md the flags of every subcommand and examples.md those of every example, as
--help prints them.
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys

import headers
import pages

COLUMN = 30  # of the meanings, in CLI11's help
GENERATED = "This page is generated: it has what `{}` prints.\n"


def output(*command):
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    if done.returncode != 0 or not done.stdout.strip():
        raise SystemExit(f"reference: {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def cell(text):
    """Text in a cell of a table, with nothing that Markdown or HTML would take for its own."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text).replace("\\<", "&lt;").replace("\\>", "&gt;")


def code(text):
    return f"`{text}`" if text else ""


def parse_help(text):
    """What CLI11 prints, as (text before the flags, [(group, [[flag, meaning]])], text behind them)."""
    before, groups, after = [], [], []
    lines = text.splitlines()
    for line, following in zip(lines, lines[1:] + [""]):
        heading = re.fullmatch(r"([A-Z][A-Za-z -]*):", line)
        if heading:
            groups.append((heading.group(1), []))
        elif not groups:
            before.append(line)
        elif re.match(r"  \S", line) and not after:
            # Meanings begin in this column; that of a long flag is on the next line.
            column = len(line) if following.startswith(" " * COLUMN) else COLUMN
            groups[-1][1].append([line[:column].strip(), line[column:].strip()])
        elif line.startswith(" " * COLUMN):
            entry = groups[-1][1][-1]
            entry[1] = f"{entry[1]} {line.strip()}".strip()
        elif line.strip():
            after.append(line)
    return before, groups, after


def flags_section(title, text, level):
    before, groups, after = parse_help(text)
    words = " ".join("".join(re.sub(r"^Usage: \S*/", "Usage: ", line) for line in before).split())
    purpose, _, usage = words.partition("Usage:")
    lines = [f"{'#' * level} {title}", "", cell(purpose.strip()), "", *([f"    {usage.strip()}", ""] if usage else [])]
    for group, entries in groups:
        if group == "Subcommands" or all(flag.startswith("-h,") for flag, _ in entries):
            continue
        lines += [f"**{group}**", "", "| | |", "| --- | --- |"]
        lines += [f"| {code(flag)} | {cell(meaning)} |" for flag, meaning in entries if not flag.startswith("-h,")]
        lines.append("")
    return lines + [cell(" ".join(after)), ""]


def subcommands(text):
    return [name.split()[0] for group, entries in parse_help(text)[1] if group == "Subcommands" for name, _ in entries]


def write_options(apogee, target):
    names = output(apogee, "options").split()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda name: output(apogee, "options", name), names))
    lines = ["# Options of optimizers", "", GENERATED.format("apogee options NAME"),
             "`optim::OptimizerRegistry` takes these names and options; `--optimizer NAME` of the examples takes the",
             "names.", ""]
    for name, text in zip(names, texts):
        lines += [f"## {name} {{: #{name} }}", "", "| option | default | meaning |", "| --- | --- | --- |"]
        for row in text.splitlines():
            option, default, meaning = (re.split(r"\s{2,}", row.strip(), maxsplit=2) + ["", ""])[:3]
            lines.append(f"| {code(option)} | {code(default)} | {cell(meaning)} |")
        lines.append("")
    target.write_text("\n".join(lines))


def write_commands(apogee, target):
    text = output(apogee, "--help")
    lines = ["# The apogee command", "", GENERATED.format("apogee SUBCOMMAND --help")]
    for name in subcommands(text):
        own = output(apogee, name, "--help")
        lines += flags_section(f"apogee {name}", own, 2)
        for inner in subcommands(own):
            lines += flags_section(f"apogee {name} {inner}", output(apogee, name, inner, "--help"), 3)
    target.write_text("\n".join(lines))


def write_examples(root, build, target):
    lines = ["# Flags of the examples", "", GENERATED.format("PROGRAM --help")]
    for program in sorted((build / "examples").glob("[0-9]*/[0-9]*_*")):
        sources = (root / "examples" / program.parent.name).glob("*.cc")
        # One example takes words, not flags.
        if program.is_file() and any("CommandLine" in source.read_text() for source in sources):
            lines += flags_section(program.name, output(program, "--help"), 2)
    target.write_text("\n".join(lines))


def first_sentence(header):
    """The purpose of a header: the first sentence of its comment."""
    text = re.sub(r"\A// SPDX[^\n]*\n+", "", header.read_text())
    comment = re.match(r"(?://[^\n]*\n)+", text)
    paragraph = re.sub(r"^// ?", "", comment.group(0), flags=re.M).split("\n\n")[0] if comment else ""
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(paragraph.split()))[0].removesuffix(":")


def write_api(root, work, target):
    links = pages.api_pages(root, work)
    lines = ["# API", "", "The public headers, by layer. `#include \"apogee/apogee.h\"` includes them all.", "",
             "[Classes](../api/annotated.html) · [namespaces](../api/namespaces.html) · [files](../api/files.html)", ""]
    layer = None
    for header in headers.public_headers(root):
        if header.split("/")[0] != layer:
            layer = header.split("/")[0]
            lines += ["", f"## {layer}", "", "| header | |", "| --- | --- |"]
        lines.append(f"| [{header}](../{links[header]}) | {cell(first_sentence(root / header))} |")
    target.write_text("\n".join(lines) + "\n")


def main():
    root, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    target = work / "pages" / "reference"
    target.mkdir(parents=True, exist_ok=True)
    write_api(root, work, target / "api.md")
    if len(sys.argv) > 3:
        build = pathlib.Path(sys.argv[3])
        write_options(build / "bin" / "apogee", target / "options.md")
        write_commands(build / "bin" / "apogee", target / "commands.md")
        write_examples(root, build, target / "examples.md")


if __name__ == "__main__":
    main()
