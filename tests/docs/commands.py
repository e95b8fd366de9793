#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command that the documents show runs here, or a table says what holds it or what it needs.

    tests/docs/commands.py BUILD_DIR            # checks all
    tests/docs/commands.py BUILD_DIR --list     # prints the commands, how each is held, and runs nothing
    tests/docs/commands.py --self-test BUILD_DIR

Commands come from README.md, docs/**/*.md and examples/README.md: blocks with the language sh, bash or console, and
indented blocks. A group of lines without an empty line between them is commands if its first line is one; in a group
that begins with `$ `, only the lines with `$ ` are.

tests/docs/commands.txt says what holds a command, one rule a line, and the first one that fits counts:

    PATTERN | run [--FLAG=VALUE ...]     run it now, in a folder of the subject, with these flags in place of its own
    PATTERN | held NAME                  a script of scripts/ or a test of ctest runs it
    PATTERN | needs WHAT                 a GPU, several machines, minutes, ...: nothing runs it

PATTERN is a shell pattern for the command, in which build/X/bin/apogee is `apogee`, build/X/examples/Y/Y is `Y`, and
comments and variables before the program are left out. Whatever the rule, the program or script must exist. A program's
--help must have each of its --flags, and the source of a script or benchmark must contain them.

Exit status: 0 good, 1 findings (`page:line: what is wrong`), 77 if BUILD_DIR has no programs.
"""
import fnmatch
import glob
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT_SECONDS = 120  # of one command
SHELLS = ("sh", "bash", "console", "shell")
LAUNCHERS = ("mpirun", "mpiexec", "srun")
# Programs of the system, whose flags are not looked up.
SYSTEM = LAUNCHERS + ("apt-get", "cmake", "cp", "ctest", "docker", "export", "g++", "git", "kubectl", "mv", "pip", "python3", "rm",
                      "sbatch", "vcpkg", "conan", "source", "sudo", "tar", "curl", "wget", "ssh", "make", "ninja", "cd", "mkdir", "man")
# Of the models that the tutorials train.
CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 32, "n_embd": 32,
          "n_layer": 1, "n_head": 2}
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


def groups_of(page, lines):
    """Groups of (number, text) that may be commands, and whether they surely are."""
    fence, sure, group, blank, in_list, indented = None, False, [], True, False, False
    for number, text in enumerate(lines + [""], 1):
        fenced = re.match(r" *(```|~~~)\s*(\w*)", text)
        if fenced:
            if group:
                yield sure, group
            group, indented = [], False
            in_list = in_list and text.startswith(" ")
            if fence is None:
                fence, sure = fenced[2], fenced[2] in SHELLS
            else:
                fence, sure = None, False
            blank = False
            continue
        if fence is not None:
            if sure and text.strip():
                group.append((number, text.strip()))
            elif group:
                yield sure, group
                group = []
            continue
        if not text.strip():
            if group:
                yield False, group
            group, blank = [], True
            continue
        if (blank or indented) and re.match(r"      " if in_list else r"    |\t", text):
            group.append((number, text.strip()))
            indented, blank = True, False
            continue
        if group:
            yield False, group
        group, indented = [], False
        if re.match(r" *([-*+]|\d+[.)]) ", text):
            in_list = True
        elif blank and not text.startswith(" "):
            in_list = False
        blank = False


def collect(root, findings):
    pages = ["README.md", "examples/README.md"]
    pages += sorted(os.path.relpath(path, root) for path in glob.glob(root + "/docs/**/*.md", recursive=True))
    commands = []
    for page in pages:
        path = os.path.join(root, page)
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        program = ""  # for which ... stands
        for sure, group in groups_of(page, lines):
            joined = []
            for number, text in group:
                if joined and joined[-1][1].endswith("\\"):
                    joined[-1] = (joined[-1][0], joined[-1][1][:-1].strip() + " " + text)
                else:
                    joined.append((number, text))
            if any(text.startswith("$ ") for _, text in joined):
                joined = [(number, text[2:]) for number, text in joined if text.startswith("$ ")]
            elif not sure:
                begins = [text for _, text in joined if not text.startswith("#")]
                if not begins or not is_command(begins[0], True):
                    continue
            for number, text in joined:
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
                    words = rest.split(" ")
                    for word in words:
                        if re.match(r"\d\d_[a-z_]+$", word):
                            program = word
                    commands.append(Command(page, number, rest, before))
    return commands


def read_table(path):
    rules = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            pattern, bar, what = line.partition(" | ")
            kind, _, rest = what.strip().partition(" ")
            if not bar or kind not in ("run", "held", "needs") or (kind != "run" and not rest):
                sys.exit(f"{path}:{number}: not a rule: {line}")
            rules.append([pattern.strip(), kind, rest.strip(), number, 0])
    return rules


class Check:
    def __init__(self, root, build, table):
        self.root, self.build, self.findings = root, build, []
        self.table = table
        self.rules = read_table(table)
        self.help, self.sources = {}, {}
        self.tests = self.names_of_tests()

    def names_of_tests(self):
        names, patterns = set(), []
        for path in glob.glob(self.root + "/tests/**/*", recursive=True):
            if os.path.basename(path) in ("CMakeLists.txt", "tests.cmake"):
                with open(path) as file:
                    for name in re.findall(r"NAME\s+([A-Za-z0-9_${}]+)", file.read()):
                        names.add(name)
                        if "${" in name:
                            patterns.append(re.sub(r"\$\{\w+\}", "[a-z0-9_]+", name))
        return names, patterns

    def exists(self, holder):
        if "/" in holder:
            return os.path.exists(os.path.join(self.root, holder))
        names, patterns = self.tests
        return holder in names or any(re.fullmatch(pattern, holder) for pattern in patterns)

    def program_path(self, name):
        """Of apogee and the examples, in the build."""
        if name == "apogee":
            return os.path.join(self.build, "bin/apogee")
        found = glob.glob(os.path.join(self.build, "examples", "*", name))
        return found[0] if found else None

    def flags_of(self, *words):
        if words not in self.help:
            program = self.program_path(words[0])
            ask = [program, "man", *words[1:]] if words[0] == "apogee" else [program, "--help"]
            done = subprocess.run(ask, capture_output=True, text=True)
            text = done.stdout.replace("\\-", "-")
            self.help[words] = set(re.findall(r"--[A-Za-z][A-Za-z0-9_.-]*", text)) if done.returncode == 0 else None
        return self.help[words]

    def source_of(self, path):
        if path not in self.sources:
            with open(path, errors="replace") as file:
                self.sources[path] = file.read()
        return self.sources[path]

    def words_of(self, command):
        try:
            return shlex.split(command.text)
        except ValueError:
            return command.text.split(" ")

    def check_names(self, command):
        """That the program and its flags exist."""
        def wrong(text):
            self.findings.append(f"{command.page}:{command.line}: {text}")

        words = self.words_of(command)
        if not words:
            return
        if words[0] in LAUNCHERS:
            words = self.after_launcher(words)
        flags, name, i = None, words[0] if words else "", 1
        if name == "apogee":
            if len(words) < 2:
                return
            if words[1] == "run":
                inner = self.after_launcher(words[1:])
                self.check_flags(wrong, "apogee run", self.flags_of("apogee", "run"), words[2:len(words) - len(inner)])
                if not inner:
                    return
                words = ["apogee"] + inner if inner[0] in ("matrix",) else inner
                name = words[0]
        if name == "apogee":
            for number in (2, 1):
                if words[1] == "data" and number == 1 or number == 2 and words[1] != "data":
                    continue
                flags = self.flags_of("apogee", *words[1:1 + number])
                name = " ".join(["apogee"] + words[1:1 + number])
                i = 1 + number
            if words[1].startswith("-"):
                return
            if flags is None:
                wrong(f"there is no command `{name}`")
                return
        elif re.match(r"\d\d_\w+$", name):
            if self.program_path(name) is None:
                wrong(f"there is no program {name}")
                return
            flags = self.flags_of(name)
        elif re.match(r"\w+_bench$", name):
            sources = glob.glob(self.root + f"/bench/**/{name}.cc", recursive=True)
            if not sources:
                wrong(f"there is no program {name}")
                return
            text = "".join(self.source_of(one) for one in sources + glob.glob(os.path.dirname(sources[0]) + "/*.h") +
                           glob.glob(self.root + "/bench/*.h"))
            flags = set(re.findall(r"--[A-Za-z][A-Za-z0-9_-]*", text))
        elif name == "python3" and len(words) > 1 and "/" in words[1] or re.match(r"(scripts|tools|bench|tests)/", name):
            i = 2 if name == "python3" else 1
            name = words[i - 1]
            path = os.path.join(self.root, name)
            if not os.path.isfile(path):
                wrong(f"there is no {name}")
                return
            if i == 1 and not os.access(path, os.X_OK):
                wrong(f"{name} is not executable")
            text = self.source_of(path)
            flags = set(re.findall(r"--[A-Za-z][A-Za-z0-9_-]*", text))
            for program in re.findall(r"\b\d\d_[a-z_]+\b", text):  # which may get the script's arguments
                if self.program_path(program):
                    flags |= self.flags_of(program) or set()
        else:
            return
        self.check_flags(wrong, name, flags, words[i:])

    def check_flags(self, wrong, name, flags, words):
        for word in words:
            flag = re.match(r"--[A-Za-z][A-Za-z0-9_-]*", word)
            if not flag or flag[0] in ("--help", "--version"):
                continue
            prefix = re.match(r"(--[a-z]+\.)", word)
            # --optim.KEY=VALUE and --plugin.KEY=VALUE
            known = flag[0] in flags or (prefix and any(one.startswith(prefix[1]) for one in flags))
            if not known:
                wrong(f"{name} has no flag {prefix[1] if prefix else flag[0]}")

    def after_launcher(self, words):
        """What mpirun, srun and `apogee run` start."""
        for i, word in enumerate(words[1:], 1):
            if self.program_path(word) if re.match(r"apogee$|\d\d_\w+$", word) else word == "matrix":
                return words[i:]
        return []

    def rule_of(self, command):
        text = command.text
        for rule in self.rules:
            if fnmatch.fnmatchcase(text, rule[0]):
                rule[4] += 1
                return rule
        return None

    def prepare(self, folder):
        """A folder with the programs, and with the inputs that pages speak of."""
        bins = os.path.join(folder, ".bin")
        os.makedirs(bins)
        for path in [self.program_path("apogee")] + glob.glob(os.path.join(self.build, "examples", "*", "[0-9][0-9]_*")):
            if os.access(path, os.X_OK) and os.path.isfile(path):
                os.symlink(os.path.abspath(path), os.path.join(bins, os.path.basename(path)))
        for name in ("scripts", "bench", "tools", "tests", "docs"):
            os.symlink(os.path.join(self.root, name), os.path.join(folder, name))
        text = ""
        for path in sorted(glob.glob(self.root + "/docs/*.md")):
            text += self.source_of(path)
        text = text[:200000]
        for name in ("book.txt", "texts/one.txt", "books/one.txt", "text/one.txt"):
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        with open(os.path.join(folder, "pages.jsonl"), "w") as file:
            for line in filter(None, text.splitlines()[:100]):
                file.write(json.dumps({"text": line}) + "\n")
        with open(os.path.join(folder, "train.jsonl"), "w") as file:
            for i in range(8):
                file.write(json.dumps({"prompt": f"How much is {i} and {i}?", "completion": f" It is {2 * i}."}) + "\n")
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(CONFIG, file)
        self.shell("apogee data train-tokenizer --vocab-size 300 --output tokenizer.json book.txt", folder)

    def shell(self, line, folder):
        environment = {**os.environ, "PATH": os.path.join(folder, ".bin") + ":" + os.environ["PATH"],
                       "OMP_WAIT_POLICY": "passive", "XDG_CACHE_HOME": os.path.join(folder, ".cache")}
        return subprocess.run(["bash", "-c", line], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT_SECONDS)

    def run(self, command, flags, folder):
        """With these flags in place of its own."""
        text = command.text
        for flag in shlex.split(flags):
            name = flag.partition("=")[0]
            pattern = rf" {re.escape(name)}(=\S+| (?!-)\S+|(?= |$))"
            text, number = re.subn(pattern, " " + flag.replace("\\", r"\\"), text)
            if number == 0:
                text += " " + flag
        # Nothing overwrites what --output names.
        output = re.search(r" --output[ =](\S+)", text)
        if output and os.path.exists(os.path.join(folder, output[1])):
            os.remove(os.path.join(folder, output[1]))
        line = " ".join(command.variables + [text])
        try:
            done = self.shell(line, folder)
        except subprocess.TimeoutExpired:
            self.findings.append(f"{command.page}:{command.line}: not done after {LIMIT_SECONDS} s: {line}")
            return
        if done.returncode != 0:
            last = done.stdout.strip().splitlines()[-3:]
            self.findings.append(f"{command.page}:{command.line}: exit status {done.returncode}: {line}\n    " +
                                 "\n    ".join(last))

    def all(self, only_list, times):
        commands = collect(self.root, self.findings)
        counts = {"run": 0, "held": 0, "needs": 0}
        done = set()
        with tempfile.TemporaryDirectory() as work:
            for command in commands:
                self.check_names(command)
                rule = self.rule_of(command)
                if rule is None:
                    self.findings.append(f"{command.page}:{command.line}: tests/docs/commands.txt has no rule for: "
                                         f"{command.text}")
                    continue
                counts[rule[1]] += 1
                if only_list:
                    print(f"{command.page}:{command.line}: {rule[1]} {rule[2]}: {command.text}")
                elif rule[1] == "held":
                    for holder in rule[2].split():
                        if not self.exists(holder):
                            self.findings.append(f"{self.table}:{rule[3]}: there is no script or test {holder}")
                elif rule[1] == "run" and command.text not in done:
                    if command.text.startswith("apogee plan "):
                        done.add(command.text)  # it reads and writes no file
                    # docs/data/tokens.md goes on in the folder of docs/data.md.
                    folder = os.path.join(work, "_".join(re.sub(r"\.md$", "", command.page).split("/")[:2]))
                    if command.page.startswith("docs/tutorials/"):
                        folder += "_" + os.path.basename(command.page)
                    if not os.path.isdir(folder):
                        self.prepare(folder)
                    begin = time.monotonic()
                    self.run(command, rule[2], folder)
                    if times:
                        print(f"{time.monotonic() - begin:6.2f} s  {command.page}:{command.line}: {command.text}")
        if not only_list:
            for pattern, kind, _, number, uses in self.rules:
                if uses == 0:
                    self.findings.append(f"{self.table}:{number}: no command fits this rule: {pattern} | {kind}")
        if not commands:
            self.findings.append("no command found")
        return counts


def self_test(build):
    """Planted errors in a small tree."""
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(root + "/docs")
        os.makedirs(root + "/scripts")
        os.makedirs(root + "/tests/x")
        with open(root + "/tests/x/tests.cmake", "w") as file:
            file.write("apogee_test(NAME x_y_test SRCS x)\nadd_test(NAME z_${kind} COMMAND x)\n")
        with open(root + "/scripts/some.sh", "w") as file:
            file.write("#!/bin/sh\n# --good\n")
        os.chmod(root + "/scripts/some.sh", 0o755)
        with open(root + "/docs/a.md", "w") as file:
            file.write("""# Planted

    build/release/bin/apogee plan gpt2 --rankz 8          # unknown flag: line 3
    build/release/bin/apogee plam gpt2                    # unknown command: line 4
    scripts/none.sh                                       # missing script: line 5
    scripts/some.sh --bad                                 # unknown flag of a script: line 6
    apogee inspect nowhere                                # no rule: line 7
    apogee options no_such_optimizer                      # fails: line 8
    apogee options sgd && apogee options no_such_second   # the second one fails: line 9
    build/release/examples/01_train_gpt/01_train_gpt --ranks 2 \\
      --plugim zero2

    01_train_gpt: this is output --not a-command
    second line of output

    unknown_program --flag                                # no rule: line 16

Text.

- A list

      apogee options adamw --nothing

```cpp
apogee options c++
```

```sh
apogee options lamb
frobnicate
```

    $ apogee options lion
    output of it

    mpirun -np 4 01_train_gpt --rankz 3
    apogee run -n 2 01_train_gpt --stepz 3
    APOGEE_RANK=0 01_train_gpt --stepq 3
    out=$(mktemp -d)
    scripts/some.sh --good
""")
        table = root + "/commands.txt"
        with open(table, "w") as file:
            file.write("apogee options * | run\napogee plan * | held x_y_test\napogee plam * | held z_any\n"
                       "scripts/* | held scripts/some.sh\n*01_train_gpt* | needs minutes\nout=* | needs a shell\n"
                       "never * | held no_such_test\n")
        check = Check(root, build, table)
        counts = check.all(False, False)
        found = "\n".join(check.findings)
        expected = [
            "docs/a.md:3: apogee plan has no flag --rankz", "docs/a.md:4: there is no command `apogee plam`",
            "docs/a.md:5: there is no scripts/none.sh", "docs/a.md:6: scripts/some.sh has no flag --bad",
            "docs/a.md:7: tests/docs/commands.txt has no rule", "docs/a.md:8: exit status 2",
            "docs/a.md:9: exit status 2", "docs/a.md:10: 01_train_gpt has no flag --plugim",
            "docs/a.md:16: tests/docs/commands.txt has no rule", "docs/a.md:22: apogee options has no flag --nothing",
            "docs/a.md:22: exit status", "docs/a.md:30: no known program", "docs/a.md:36: 01_train_gpt has no flag --rankz",
            "docs/a.md:37: 01_train_gpt has no flag --stepz", "docs/a.md:38: 01_train_gpt has no flag --stepq",
            "commands.txt:7: no command fits"
        ]
        for one in expected:
            if one not in found:
                sys.exit(f"commands self test: not found: {one}\n{found}")
        if len(check.findings) != len(expected):
            sys.exit(f"commands self test: {len(check.findings)} findings, not {len(expected)}:\n{found}")
        if counts["run"] != 6:
            sys.exit(f"commands self test: {counts} commands; 6 should run")
        with open(table, "w") as file:
            file.write("* | held no_such_test\n")
        check = Check(root, build, table)
        check.all(False, False)
        if "commands.txt:1: there is no script or test no_such_test" not in "\n".join(check.findings):
            sys.exit("commands self test: a missing test is not found")
    print(f"commands self test: {len(expected)} planted errors found")


def main():
    arguments = [one for one in sys.argv[1:] if not one.startswith("--")]
    options = {one for one in sys.argv[1:] if one.startswith("--")}
    if len(arguments) != 1 or not options <= {"--list", "--self-test", "--times"}:
        sys.exit(__doc__)
    build = os.path.abspath(arguments[0])
    if not os.path.exists(os.path.join(build, "bin/apogee")) or not glob.glob(build + "/examples/*/01_train_gpt"):
        print(f"commands: {build} has no bin/apogee or no examples")
        sys.exit(77)
    if "--self-test" in options:
        self_test(build)
        return
    check = Check(ROOT, build, os.path.join(HERE, "commands.txt"))
    counts = check.all("--list" in options, "--times" in options)
    print("\n".join(check.findings))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"commands: {sum(counts.values())} commands, {counts['run']} run, {counts['held']} held by a test or script, "
          f"{counts['needs']} not run; {used.ru_utime + used.ru_stime:.0f} s of processor time")
    if check.findings:
        print(f"commands: {len(check.findings)} wrong")
        sys.exit(1)


if __name__ == "__main__":
    main()
