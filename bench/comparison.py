# SPDX-License-Identifier: Apache-2.0
"""Functions of the scripts that compare our benchmarks with others: fail, run programs, write JSON.

    from comparison import MPIRUN_AS_ROOT, fail, run, write_json

    text = run([program, "--ranks", 2], **MPIRUN_AS_ROOT)
    write_json(args.json, {"results": [json.loads(text)]})
"""

import json
import os
import pathlib
import subprocess
import sys

# mpirun refuses to run as root without these two.
MPIRUN_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def fail(message):
    print(f"{pathlib.Path(sys.argv[0]).stem}: {message}", file=sys.stderr)
    sys.exit(1)


def run(command, **environment):
    """Runs the command with these variables added to the environment and returns its output; fails if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout


def write_json(where, document, indent=None):
    """Writes to the file `where`; - is stdout."""
    text = json.dumps(document, indent=indent) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        pathlib.Path(where).write_text(text)
