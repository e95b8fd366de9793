#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the same GPT in apogee and in PyTorch and prints how their speeds compare.

    bench/compare_pytorch.py --build build/release --json -

6 layers, d = 384, 6 heads, T = 256, B = 8, V = 4096, AdamW, no dropout, random tokens. A pair is two
processes, one after the other, which take turns at going first. A figure is the median over the pairs of a
process's median step. Run it on a quiet machine. A table goes to stderr, the JSON to --json:

    {"results": [{"precision": "f32", "threads": 1, "ours": tok/s, "pytorch": tok/s, "ratio": median of the
                  pairs' ratios, "outside_products": share of our step, ...}], "torch": version, "blas": path}

`outside_products` counts the fused attention kernel as products, `outside_products_strict` does not; `shares`
divides our step further. `pytorch_outside_products` is the share of operators other than mm, addmm, bmm and
baddbmm according to PyTorch's profiler. `ledger_over_process` is the peak of our memory ledger divided by the
growth of the process since its start, at its peak.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import comparison
from comparison import fail, write_json

HERE = pathlib.Path(__file__).resolve().parent


def our_program(build, name):
    """The path of the benchmark; builds it if the build tree does not have it."""
    program = build / "bench" / name
    if not program.exists():
        if not (build / "CMakeCache.txt").exists():
            fail(f"{build} is no build tree of apogee; give one with --build, for instance build/release")
        print(f"building {name} in {build}", file=sys.stderr)
        for command in (["cmake", "-DAPOGEE_BUILD_BENCH=ON", str(build)],
                        ["cmake", "--build", str(build), "--target", name]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                fail(f"`{' '.join(command)}` failed:\n{done.stdout}")
    return program


def thread_counts(parser, text):
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        parser.error(f"--threads needs numbers with commas between, for instance 1,2; got {text}")


def run(command, threads):
    # Waiting threads sleep: that way other processes on the machine disturb both sides least.
    return comparison.run(command, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS=str(threads))


def blas_of_torch(python):
    """The file of the BLAS that PyTorch loads; Debian selects it with update-alternatives."""
    code = ("import torch; torch.ones(64, 64) @ torch.ones(64, 64); "
            "print(next((l.split()[-1] for l in open('/proc/self/maps') if 'blas' in l), 'unknown'))")
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{python} has no PyTorch; install python3-torch, or name another Python with --python: "
             f"{done.stderr.strip().splitlines()[-1]}")
    return os.path.realpath(done.stdout.strip())


def compare(program, python, precision, threads, args):
    flags = ["--precision", precision, "--threads", threads, "--steps", args.steps]
    ours_command = [program, *flags]
    theirs_command = [python, HERE / "pytorch_gpt.py", *flags]
    ours, theirs = [], []
    for pair in range(args.pairs):
        profile = ["--profile"] if pair == 0 else []
        runs = [(ours, ours_command), (theirs, theirs_command + profile)]
        for results, command in runs if pair % 2 == 0 else reversed(runs):
            results.append(json.loads(run(command, threads)))

    def median(values):
        return statistics.median(values)

    result = {
        "precision": precision,
        "threads": threads,
        "ours": round(median(r["tokens_per_s"] for r in ours), 1),
        "pytorch": round(median(r["tokens_per_s"] for r in theirs), 1),
        "ratio": round(median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(ours, theirs)), 3),
        "outside_products": round(median(r["outside_products"] for r in ours), 4),
        "outside_products_strict": round(median(r["outside_products_strict"] for r in ours), 4),
        "shares": {name: round(median(r["shares"][name] for r in ours), 4) for name in ours[0]["shares"]},
        "pytorch_outside_products": round(theirs[0]["outside_products"], 4),
        "ledger_over_process": round(median(r["ledger_bytes"] / r["process_bytes"] for r in ours), 4),
        "pairs": args.pairs,
    }
    print(f"{precision:>9} {threads:7} {result['ours']:10,.0f} {result['pytorch']:10,.0f} "
          f"{result['ratio']:6.2f} {result['outside_products']:9.1%} "
          f"{result['outside_products_strict']:7.1%} {result['pytorch_outside_products']:9.1%}",
          file=sys.stderr, flush=True)
    return result, theirs[0]["torch"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path, help="build tree of apogee")
    parser.add_argument("--json", default="-", help="where the results go; - is stdout")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each side per setting")
    parser.add_argument("--steps", type=int, default=3, help="timed steps per run, after two untimed steps")
    parser.add_argument("--precision", default="f32,bf16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has PyTorch")
    args = parser.parse_args()
    if args.pairs < 1 or args.steps < 1:
        parser.error("--pairs and --steps must be at least 1")
    threads = thread_counts(parser, args.threads)
    precisions = args.precision.split(",")
    if set(precisions) - {"f32", "bf16"}:
        parser.error(f"--precision needs f32, bf16 or both with a comma; got {args.precision}")

    program = our_program(args.build, "gpt_bench")
    blas = blas_of_torch(args.python)
    print("precision threads ours tok/s torch tok/s ratio  outside  strict  torch's outside products",
          file=sys.stderr)
    results = []
    for precision in precisions:
        for count in threads:
            result, torch_version = compare(program, args.python, precision, count, args)
            results.append(result)
    write_json(args.json, {"results": results, "torch": torch_version, "blas": blas})


if __name__ == "__main__":
    main()
