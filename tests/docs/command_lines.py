# SPDX-License-Identifier: Apache-2.0
"""The commands of Markdown pages, for commands.py. extract.awk, which check_docs.sh uses too, finds the code blocks.

    for command in collect(root, findings): print(command.page, command.line, command.text)
"""
import glob
import os
import re
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
SHELLS = ("sh", "bash", "console", "shell")
# Programs of the system.
SYSTEM = ("mpirun", "mpiexec", "srun", "apt-get", "cmake", "cp", "ctest", "docker", "export", "g++", "git", "kubectl", "mv", "pip", "python3", "rm",
                      "sbatch", "vcpkg", "conan", "source", "sudo", "tar", "curl", "wget", "ssh", "make", "ninja", "cd", "mkdir", "man")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\S*$")


class Command:
    """One command of a page. `text` is normalised, `program` its first word."""

    def __init__(self, page, line, text, before):
        self.page, self.line, self.text, self.variables = page, line, text, before
        self.program = text.split(" ")[0]


def without_comment(text):
    """A # begins a comment outside of quotes, after white space."""
    quote = ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c == "#" and (i == 0 or text[i - 1].isspace()):
            return text[:i]
    return text


def simple_commands(text):
    """The parts between &&, ||, | and ; outside of quotes and parentheses."""
    parts, depth, quote, start, i = [], 0, "", 0, 0
    while i < len(text):
        c = text[i]
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "()":
            depth += 1 if c == "(" else -1
        elif depth == 0 and c in "&|;":
            end = i + 2 if text[i:i + 2] in ("&&", "||") else i + 1
            parts.append(text[start:i])
            start, i = end, end - 1
        i += 1
    return [part.strip() for part in parts + [text[start:]] if part.strip()]


def split_variables(text):
    """Variables, sudo and the like before the program; and the rest. Of a mere assignment all of it."""
    before = []
    rest = text
    while not re.match(r"\w+=\$\(", rest):
        word, _, tail = rest.partition(" ")
        if not (ASSIGNMENT.match(word) or word in ("sudo", "time", "env", "$")):
            return before, rest
        if not tail:
            return before, rest
        before.append(word)
        rest = tail.strip()
    return before, rest


def normalised(text):
    text = re.sub(r"\bbuild/[a-z-]+/bin/apogee\b", "apogee", text)
    text = re.sub(r"\bbuild/[a-z-]+/examples/\w+/(\w+)", r"\1", text)
    text = re.sub(r"\bbuild/[a-z-]+/bench/(\w+)", r"\1", text)
    text = re.sub(r"(^| )(?:examples|bench)/(\d\d_\w+|\w+_bench)(?= |$)", r"\1\2", text)
    return " ".join(text.split())


def is_command(text, first):
    """Whether the line is one. `first`: of its group, where an unknown program with flags counts, too."""
    text = text.strip()
    if re.match(r"[a-z_]+=\$\(", text):
        return True
    before, text = split_variables(without_comment(text).strip())
    word, _, rest = text.partition(" ")
    if re.match(r"[A-Z_a-z]+=\S+$", text):
        return True
    if before:
        return True
    if word == "...":
        return rest.startswith("-")
    if not re.match(r"\.{0,2}/?[A-Za-z0-9_][A-Za-z0-9_.+/-]*$", word) or rest.startswith(("= ", "(")):
        return False
    if re.match(r"(\./)?(scripts|tools|bench|tests|build|gpu|venv)/\S*[a-z0-9]$", word):
        return True
    if word == "apogee":
        return re.match(r"[a-z][a-z-]*( |$)", rest) is not None
    if re.match(r"\d\d_[a-z_]+$", word):
        return True
    if word in SYSTEM:
        return rest != "" and not rest.startswith(("=", ":"))
    return first and re.search(r"(^| )--[a-z][a-z-]+([ =]|$)", rest) is not None and not text.endswith((";", "{"))


def groups_of(root, pages):
    """Groups (page, lines) of lines of code without an empty line between them; each line is (number, text)."""
    done = subprocess.run(["awk", "-f", os.path.join(HERE, "extract.awk"), *pages], cwd=root, text=True,
                          capture_output=True, check=True)
    sources, group, place, language = {}, [], "", ""
    for line in done.stdout.splitlines():
        kind, page, number, text = (line.split("\t", 3) + [""])[:4]
        if kind != "CODE":
            continue
        if page not in sources:
            with open(os.path.join(root, page), encoding="utf-8") as file:
                sources[page] = file.read().splitlines()
        number = int(number)
        begins = not text  # of a block; its fence names the language
        if begins or page != place or not sources[page][number - 2].strip():
            if group:
                yield place, group
            group, place = [], page
        if begins:
            fence = re.match(r" *(?:```|~~~)\s*(\w*)", sources[page][number - 1])
            language = fence[1] if fence else "sh"
        elif language in SHELLS:
            group.append((number, text.strip()))
    if group:
        yield place, group


def collect(root, findings):
    pages = ["README.md", "examples/README.md"]
    pages += sorted(os.path.relpath(path, root) for path in glob.glob(root + "/docs/**/*.md", recursive=True))
    pages = [page for page in pages if os.path.exists(os.path.join(root, page))]
    commands, program, last_page = [], "", ""  # the program for which ... stands
    for page, group in groups_of(root, pages):
        if page != last_page:
            program, last_page = "", page
        if any(text.startswith("$ ") for _, text in group):
            group = [(number, text[2:]) for number, text in group if text.startswith("$ ")]
        else:
            begins = [text for _, text in group if not text.startswith("#")]
            if not begins or not is_command(begins[0], True):
                continue
        for number, text in group:
            text = without_comment(text).strip()
            if not text:
                continue
            if not is_command(text, True):
                findings.append(f"{page}:{number}: no known program begins `{text}`, in a group of commands")
                continue
            for part in simple_commands(text):
                before, rest = split_variables(part)
                rest = normalised(rest)
                if rest.startswith("... ") and program:
                    rest = program + rest[3:]
                for word in rest.split(" "):
                    if re.match(r"\d\d_[a-z_]+$", word):
                        program = word
                commands.append(Command(page, number, rest, before))
    return commands
