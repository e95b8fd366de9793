#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT with every optimizer, at three rates and with three seeds.

    bench/optimizer_curves.py run  --build build/release --results docs/optimizer_curves.json [--jobs 2]
    bench/optimizer_curves.py time --build build/release --results docs/optimizer_curves.json
    bench/optimizer_curves.py draw --results docs/optimizer_curves.json

`run` writes the mean validation loss and the mean training curve of each rate; it goes on where it was stopped.
`time` measures the time of a step, alone on the machine: the optimizers take turns, AdamW before each of them.
`draw` writes the table of docs/which_optimizer.md and its pictures. The model: 2 layers of width 96, 64 bytes of
context, 254,592 parameters. It trains on the default text, 512 bytes per step, 300 steps.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

MODEL = "--layers 2 --heads 4 --dim 96 --block 64 --batch 8 --sample 0 --log-every 100000 --threads 1".split()
STEPS, TIMED_STEPS, SEEDS, FACTORS = 300, 40, (1, 2, 3), (0.4, 1, 2.5)
WINDOW = 10  # steps per point of a curve

CONSTANT = ["--schedule", "constant", "--optim.warmup_steps=30"]
FREEZE = ["--optim.freeze_step=100"]
# Optimizer -> the rate in the middle, and its other options.
RUNS = {
    "adafactor": (4e-2, ["--optim.relative_step=false", "--optim.beta1=0.9"]),
    "adafactor_torch": (2e-2, []),
    "adalomo": (3e-2, []),
    "adam": (4e-3, []),
    "adamw": (4e-3, []),
    "adamw8bit": (4e-3, []),
    "adamw_hf": (4e-3, []),
    "came": (4e-4, ["--optim.betas=0.8,0.999,0.9999"]),
    "dion": (2e-2, ["--optim.adam_scale=0.2"]),
    "galore_adafactor": (8e-2, ["--optim.relative_step=false"]),
    "galore_adamw": (8e-3, []),
    "galore_adamw8bit": (8e-3, []),
    "lamb": (1e-2, []),
    "lamb_apex": (1e-2, []),
    "lamb_colossal": (1e-2, []),
    "lamb_deepspeed": (1e-2, []),
    "lars": (10, ["--optim.momentum=0.9"]),
    "lion": (7e-4, ["--optim.betas=0.9,0.95"]),
    "lomo": (0.3, []),
    "muon": (2e-2, ["--optim.adam_scale=0.2"]),
    "muon_deepseek4": (4e-3, []),
    "muon_dion": (1e-2, ["--optim.adam_scale=0.4"]),
    "muon_moonlight": (4e-3, []),
    "muon_torch": (2e-2, ["--optim.adam_scale=0.2"]),
    "normuon": (1e-2, ["--optim.adam_scale=0.4"]),
    "onebit_adam": (2e-3, FREEZE),
    "onebit_adam_deepspeed": (2e-3, FREEZE),
    "onebit_lamb": (1e-2, FREEZE),
    "scaled_adam": (5e-2, []),
    "scaled_adam_icefall": (5e-2, []),
    "scaled_adam_icefall_2023": (5e-2, []),
    "schedule_free_adamw": (8e-3, CONSTANT),
    "schedule_free_sgd": (2, CONSTANT),
    "sgd": (0.3, ["--optim.momentum=0.9"]),
    "soap": (4e-3, []),
    "zero_one_adam": (2e-3, []),
}


def train(program, name, rate, seed, steps):
    """The rows of metrics.jsonl and the validation loss."""
    with tempfile.TemporaryDirectory() as out:
        command = [program, *MODEL, "--out", out, "--steps", str(steps), "--seed", str(seed), "--optimizer", name]
        done = subprocess.run(command + ["--lr", f"{rate:g}", *RUNS[name][1]], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name}, rate {rate:g}: {done.stderr.strip().splitlines()[-1]}")
        rows = [json.loads(line) for line in open(pathlib.Path(out) / "metrics.jsonl")]
        return rows, json.loads(open(pathlib.Path(out) / "validation.jsonl").readline())["loss"]


def run(args):
    results = load(args.results)
    program = program_of(args)
    todo = [
        (name, f"{middle * factor:g}")
        for name, (middle, _) in RUNS.items()
        for factor in FACTORS
        if f"{middle * factor:g}" not in results.get(name, {}).get("rates", {})
    ]

    def one(name, rate):
        curves, losses = [], []
        for seed in SEEDS:
            try:
                rows, loss = train(program, name, float(rate), seed, STEPS)
            except RuntimeError as error:
                return name, rate, {"failed": str(error)}
            train_loss = [row["loss"] for row in rows]
            curves.append([statistics.mean(train_loss[i : i + WINDOW]) for i in range(0, STEPS, WINDOW)])
            losses.append(loss)
        curve = [round(statistics.mean(points), 4) for points in zip(*curves)]
        return name, rate, {"losses": [round(loss, 4) for loss in losses], "curve": curve}

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, *job) for job in todo]):
            name, rate, result = done.result()
            results.setdefault(name, {}).setdefault("rates", {})[rate] = result
            save(args.results, results)
            print(name, rate, result.get("failed", result.get("losses")), flush=True)


def best(result):
    """The rate with the lowest mean validation loss."""
    rates = {rate: r for rate, r in result["rates"].items() if "losses" in r}
    return min(rates, key=lambda rate: statistics.mean(rates[rate]["losses"])) if rates else None


def time(args):
    results = load(args.results)
    program = program_of(args)
    seconds = lambda rows: statistics.median(row["seconds"] for row in rows[10:])
    adamw = float(best(results["adamw"]))
    for name in RUNS:
        if name not in results or best(results[name]) is None:
            continue
        reference = seconds(train(program, "adamw", adamw, 1, TIMED_STEPS)[0])
        rows, _ = train(program, name, float(best(results[name])), 1, TIMED_STEPS)
        results[name]["step_ms"] = round(1e3 * seconds(rows), 2)
        results[name]["step_over_adamw"] = round(seconds(rows) / reference, 3)
        memory = rows[-1]["memory"]
        results[name]["state_bytes_per_parameter"] = round(4 * memory["optimizer_state"] / memory["parameter"], 2)
        save(args.results, results)
        print(name, results[name]["step_over_adamw"], results[name]["state_bytes_per_parameter"], flush=True)


def load(path):
    return json.loads(path.read_text()) if path.exists() else {}


def save(path, results):
    path.write_text(json.dumps(results, indent=None, sort_keys=True, separators=(",", ":")).replace('},"', '},\n"') + "\n")


def program_of(args):
    return str(pathlib.Path(args.build).resolve() / "examples/01_train_gpt/01_train_gpt")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "time", "draw"])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    {"run": run, "time": time}[args.command](args)


if __name__ == "__main__":
    main()
