#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our collectives between processes with MPI's own, by size.

    bench/compare_collectives.py --build build/release [--ranks 2 4] [--rounds 3] [--json -]

Needs MPI (scripts/install_deps.sh bench mpi) and a build with -DAPOGEE_BUILD_BENCH=ON. The two programs take turns, in
both orders. A time is the median over the rounds, the ratio is the median of the rounds' ratios. Run it on a quiet
machine. A table goes to stderr, the JSON to --json.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import sys

from comparison import MPIRUN_AS_ROOT, fail, run, write_json

OPS = ["all_reduce", "reduce_scatter", "all_gather"]
SIZES = [1 << s for s in (10, 12, 14, 16, 18, 20, 22, 24, 26, 28)]


def size_name(size):
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ops", nargs="+", default=OPS, choices=OPS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes of the whole tensor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for the results; - for stdout")
    args = parser.parse_args()

    ours, mpi = args.build / "bench" / "collectives_bench", args.build / "bench" / "mpi_collectives"
    mpirun = shutil.which("mpirun")
    if not ours.exists() or not mpi.exists() or mpirun is None:
        fail("collectives_bench, mpi_collectives or mpirun is missing; run scripts/install_deps.sh bench mpi, configure "
             "with -DAPOGEE_BUILD_BENCH=ON and build")

    results = []
    print(f"{'ranks':>5} {'collective':>15} {'size':>8} {'ours us':>10} {'MPI us':>10} {'ratio':>6}", file=sys.stderr)
    for ranks in args.ranks:
        for op in args.ops:
            rounds = []
            for turn in range(args.rounds):
                times = {}
                for program in ([ours, mpi] if turn % 2 == 0 else [mpi, ours]):
                    command = [mpirun, "--oversubscribe", "--bind-to", "none", "-np", ranks, program, op, *args.sizes]
                    times[program] = json.loads(run(command, **MPIRUN_AS_ROOT))["us"]
                rounds.append(times)
            for size in args.sizes:
                row = {
                    "ranks": ranks,
                    "op": op,
                    "bytes": size,
                    "ours_us": statistics.median(times[ours][str(size)] for times in rounds),
                    "mpi_us": statistics.median(times[mpi][str(size)] for times in rounds),
                    "ratio": statistics.median(times[ours][str(size)] / times[mpi][str(size)] for times in rounds),
                }
                print(f"{ranks:5d} {op:>15} {size_name(size):>8} {row['ours_us']:10.1f} {row['mpi_us']:10.1f} "
                      f"{row['ratio']:6.2f}", file=sys.stderr)
                results.append(row)
    if args.json:
        write_json(args.json, {"results": results}, indent=1)


if __name__ == "__main__":
    main()
