#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares all-reduce between threads, a plain copy of the same bytes, all-reduce between processes, and Open MPI's.

    bench/compare_comm.py --build build/release [--ranks 2 4] [--mib 64] [--rounds 3] [--json -]

Needs a build with -DAPOGEE_BUILD_BENCH=ON. mpi_collectives is built if MPI is installed (scripts/install_deps.sh mpi);
without it the columns of processes are left out. The programs take turns; a time is the median over the rounds. Run it on
a quiet machine. A table goes to stderr, the JSON to --json.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import sys

from comparison import MPIRUN_AS_ROOT, fail, run, write_json


def measure(command):
    return json.loads(run(command, **MPIRUN_AS_ROOT))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for the results; - for stdout")
    args = parser.parse_args()

    ours = args.build / "bench" / "comm_bench"
    if not ours.exists():
        fail(f"{ours} is missing; configure with -DAPOGEE_BUILD_BENCH=ON and build it")
    mpi = args.build / "bench" / "mpi_collectives"
    mpirun = shutil.which("mpirun")
    with_mpi = mpi.exists() and mpirun is not None
    if not with_mpi:
        print("compare_comm: the build tree has no mpi_collectives, or there is no mpirun; Open MPI is left out", file=sys.stderr)

    results = []
    print(f"{'ranks':>5} {'copy ms':>9} {'all-reduce ms':>14} {'ratio':>6} {'processes ms':>12} {'Open MPI ms':>12} {'ratio':>6}",
          file=sys.stderr)
    for ranks in args.ranks:
        rounds = []
        for _ in range(args.rounds):
            row = measure([ours, "--ranks", ranks, "--mib", args.mib])
            if with_mpi:
                processes = measure([mpirun, "--oversubscribe", "-np", ranks, ours, "--mib", args.mib])
                row["processes_ms"] = processes["all_reduce_ms"]
                size = args.mib << 20
                calls = measure([mpirun, "--oversubscribe", "-np", ranks, mpi, "all_reduce", size])
                row["mpi_ms"] = calls["us"][str(size)] / 1e3
            rounds.append(row)
        result = {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
        mpi_text = ""
        if with_mpi:
            result["processes_to_mpi"] = result["processes_ms"] / result["mpi_ms"]
            mpi_text = f"{result['processes_ms']:12.1f} {result['mpi_ms']:12.1f} {result['processes_to_mpi']:6.2f}"
        print(f"{ranks:5d} {result['copy_ms']:9.1f} {result['all_reduce_ms']:14.1f} {result['ratio']:6.2f} "
              f"{mpi_text}", file=sys.stderr)
        results.append(result)
    if args.json:
        write_json(args.json, {"results": results}, indent=1)


if __name__ == "__main__":
    main()
