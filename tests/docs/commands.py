#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command that the documents show runs here, or a table says what holds it or what it needs.

    tests/docs/commands.py BUILD_DIR            # checks all
    tests/docs/commands.py BUILD_DIR --list     # prints the commands, how each is held, and runs nothing
    tests/docs/commands.py BUILD_DIR --times    # prints the time of each that runs

Commands come from README.md, docs/**/*.md and examples/README.md: blocks with the language sh, bash or console, and
indented blocks (command_lines.py). A group of lines without an empty line between them is commands if its first line is
one; in a group that has `$ `, only the lines with `$ ` are.

tests/docs/commands.txt says what holds a command, one rule a line, and the first one that fits counts:

    PATTERN | run [--FLAG=VALUE ...]     run it now, in a folder of the subject, with these flags in place of its own
    PATTERN | held NAME                  a script of scripts/ or a test of ctest runs it
    PATTERN | needs WHAT                 a GPU, several machines, minutes, ...: nothing runs it

PATTERN is a shell pattern for the command, in which build/X/bin/apogee is `apogee`, build/X/examples/Y/Y is `Y`, and
comments and variables before the program are left out. check_docs.sh checks that programs, scripts and flags exist.

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

from command_lines import collect

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT_SECONDS = 120  # of one command
# Of the models that the tutorials train.
CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 32, "n_embd": 32,
          "n_layer": 1, "n_head": 2}


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
        self.tests = self.names_of_tests()

    def names_of_tests(self):
        names, patterns = set(), []
        for path in glob.glob(self.root + "/tests/**/*", recursive=True):
            if os.path.basename(path) in ("CMakeLists.txt", "tests.cmake"):
                with open(path) as file:
                    for name in re.findall(r"(?:NAME\s+|apogee_matrix_test\()([A-Za-z0-9_${}]+)", file.read()):
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
            with open(path, encoding="utf-8") as file:
                text += file.read()
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


def main():
    arguments = [one for one in sys.argv[1:] if not one.startswith("--")]
    options = {one for one in sys.argv[1:] if one.startswith("--")}
    if len(arguments) != 1 or not options <= {"--list", "--times"}:
        sys.exit(__doc__)
    build = os.path.abspath(arguments[0])
    if not os.path.exists(os.path.join(build, "bin/apogee")) or not glob.glob(build + "/examples/*/01_train_gpt"):
        print(f"commands: {build} has no bin/apogee or no examples")
        sys.exit(77)
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
