#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps the same parameters with our AdamW and with PyTorch's and prints how their speeds compare.

    bench/compare_optim.py --build build/release --json -

32 M f32 parameters in the shapes of a GPT (optim_bench.cc); torch.optim.AdamW with its defaults and with
foreach=True. A round is one process of each; the order rotates from round to round. The time of a process is its
fastest step, a ratio is the median over the rounds. Both sides only step: no clipping, no check for non-finite
gradients. Run it on a quiet machine, or for one thread with --clock processor, which counts only the time for
which the thread runs. A table goes to stderr, the JSON to --json:

    {"results": [{"threads": 1, "ours": ms, "default": ms, "foreach": ms, "default_ratio": theirs over ours,
                  "foreach_ratio": ..., "rounds": 7}], "torch": version}
"""

import argparse
import json
import pathlib
import statistics
import sys

from compare_pytorch import HERE, our_program, run, thread_counts
from comparison import write_json


def our_run(command, threads):
    """The milliseconds of the row "adamw" of optim_bench's table."""
    for line in run(command, threads).splitlines():
        words = line.split()
        if words and words[0] == "adamw":
            return {"ms": float(words[2])}
    raise ValueError("optim_bench printed no row of adamw")


def compare(program, python, threads, args):
    flags = ["--params", args.params, "--threads", threads, "--repeats", args.repeats,
             "--clock", args.clock]
    peer = [python, HERE / "pytorch_optim.py", *flags]
    sides = [("ours", lambda: our_run([program, "--only", "adamw", *flags], threads)),
             ("default", lambda: json.loads(run(peer, threads))),
             ("foreach", lambda: json.loads(run([*peer, "--foreach"], threads)))]
    rounds = []
    for number in range(args.rounds):
        turn = number % len(sides)
        rounds.append({name: side() for name, side in sides[turn:] + sides[:turn]})
    result = {"threads": threads, "rounds": args.rounds}
    for name, _ in sides:
        result[name] = round(statistics.median(r[name]["ms"] for r in rounds), 2)
    for name in ("default", "foreach"):
        ratios = [r[name]["ms"] / r["ours"]["ms"] for r in rounds]
        result[f"{name}_ratio"] = round(statistics.median(ratios), 2)
    print(f"{threads:7} {result['ours']:8.1f} {result['default']:12.1f} {result['default_ratio']:6.2f} "
          f"{result['foreach']:12.1f} {result['foreach_ratio']:6.2f}", file=sys.stderr, flush=True)
    return result, rounds[0]["default"]["torch"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path, help="build tree of apogee")
    parser.add_argument("--json", default="-", help="where the results go; - is stdout")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each side per number of threads")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps per process, after one untimed step")
    parser.add_argument("--params", type=int, default=32 << 20)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has PyTorch")
    args = parser.parse_args()
    if args.rounds < 1 or args.repeats < 1 or args.params < 1:
        parser.error("--rounds, --repeats and --params must be at least 1")
    threads = thread_counts(parser, args.threads)
    if args.clock == "processor" and threads != [1]:
        parser.error("--clock processor needs --threads 1")

    program = our_program(args.build, "optim_bench")
    print("threads  ours ms  default ms  ratio   foreach ms  ratio", file=sys.stderr)
    results = []
    for count in threads:
        result, torch_version = compare(program, args.python, count, args)
        results.append(result)
    write_json(args.json, {"results": results, "torch": torch_version})


if __name__ == "__main__":
    main()
