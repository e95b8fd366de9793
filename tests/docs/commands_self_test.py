#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants errors in a small tree, and expects commands.py to find each.

    tests/docs/commands_self_test.py BUILD_DIR
"""
import os
import sys
import tempfile

from commands import Check


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

    build/release/bin/apogee plan gpt2 --ranks 8
    apogee inspect nowhere                                # no rule: line 4
    apogee options no_such_optimizer                      # fails: line 5
    apogee options sgd && apogee options no_such_second   # the second one fails: line 6
    build/release/examples/01_train_gpt/01_train_gpt --ranks 2 \\
      --plugin zero2

    01_train_gpt: this is output --not a-command
    second line of output

    unknown_program --flag                                # no rule: line 13

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

    mpirun -np 4 01_train_gpt --ranks 3
    APOGEE_RANK=0 01_train_gpt --steps 3
    out=$(mktemp -d)
    scripts/some.sh --good
""")
        table = root + "/commands.txt"
        with open(table, "w") as file:
            file.write("apogee options * | run\napogee plan * | held x_y_test z_any\n"
                       "scripts/* | held scripts/some.sh\n*01_train_gpt* | needs minutes\nout=* | needs a shell\n"
                       "never * | held no_such_test\n")
        check = Check(root, build, table)
        counts = check.all(False, False)
        found = "\n".join(check.findings)
        expected = [
            "docs/a.md:4: tests/docs/commands.txt has no rule", "docs/a.md:5: exit status 2",
            "docs/a.md:6: exit status 2", "docs/a.md:13: tests/docs/commands.txt has no rule",
            "docs/a.md:19: exit status", "docs/a.md:27: no known program", "commands.txt:6: no command fits"
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


if __name__ == "__main__":
    self_test(os.path.abspath(sys.argv[1]))
