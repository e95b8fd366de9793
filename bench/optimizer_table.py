#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the example GPT with every optimizer and writes the table of docs/optimizers/example_gpt.md.

    bench/optimizer_table.py --build build/release [--steps 300] [--only adam,lamb] [--write]

Each row has the validation loss after --steps steps on the default text, the median tokens per second and the
peak bytes of optimizer state. The settings below gave the lowest loss of those tried; everything else is the
example's default. Without --write the table goes to stdout only.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# Label -> flags. An optimizer may occur several times with other options.
RUNS = {
    "sgd (momentum 0.9)": ["--optimizer", "sgd", "--lr", "0.3", "--optim.momentum=0.9"],
    "lars": ["--optimizer", "lars", "--lr", "10", "--optim.momentum=0.9"],
    "adam": ["--optimizer", "adam", "--lr", "2e-3"],
    "adamw": ["--optimizer", "adamw", "--lr", "2e-3"],
    "adamw_hf": ["--optimizer", "adamw_hf", "--lr", "2e-3"],
    "adamw8bit": ["--optimizer", "adamw8bit", "--lr", "2e-3"],
    "lion": ["--optimizer", "lion", "--lr", "5e-4", "--optim.betas=0.9,0.95"],
    "adafactor": ["--optimizer", "adafactor", "--lr", "4e-2", "--optim.relative_step=false", "--optim.beta1=0.9"],
    "came": ["--optimizer", "came", "--lr", "1.5e-4", "--optim.betas=0.8,0.999,0.9999"],
    "lamb": ["--optimizer", "lamb", "--lr", "1e-2"],
    "scaled_adam": ["--optimizer", "scaled_adam", "--lr", "5e-2"],
    "galore_adamw": ["--optimizer", "galore_adamw", "--lr", "8e-3"],
    "galore_adafactor": ["--optimizer", "galore_adafactor", "--lr", "8e-2", "--optim.relative_step=false"],
    "galore_adamw8bit": ["--optimizer", "galore_adamw8bit", "--lr", "8e-3"],
    "muon": ["--optimizer", "muon", "--lr", "2e-2", "--optim.adam_scale=0.1"],
    "normuon": ["--optimizer", "normuon", "--lr", "1e-2", "--optim.adam_scale=0.2"],
    "dion": ["--optimizer", "dion", "--lr", "2e-2"],
    "soap": ["--optimizer", "soap", "--lr", "3e-3"],
    "schedule_free_adamw": ["--optimizer", "schedule_free_adamw", "--lr", "5e-3", "--schedule", "constant",
                            "--optim.warmup_steps=30"],
    "schedule_free_sgd": ["--optimizer", "schedule_free_sgd", "--lr", "2", "--schedule", "constant",
                          "--optim.warmup_steps=30"],
    "lomo": ["--optimizer", "lomo", "--lr", "0.3"],
    "adalomo": ["--optimizer", "adalomo", "--lr", "3e-2"],
}
BEGIN, END = "<!-- optimizer table: begin -->", "<!-- optimizer table: end -->"


def train(program, flags):
    """Runs the example. Returns the rows of metrics.jsonl and the validation loss."""
    with tempfile.TemporaryDirectory() as out:
        command = [program, "--out", out, "--log-every", "100000", *flags]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        rows = [json.loads(line) for line in open(pathlib.Path(out) / "metrics.jsonl")]
        return rows, json.loads(open(pathlib.Path(out) / "validation.jsonl").readline())["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    program = str(pathlib.Path(args.build).resolve() / "examples/01_train_gpt/01_train_gpt")
    only = [name for name in args.only.split(",") if name]
    lines = [
        f"Validation loss (nats per byte) of the example GPT after {args.steps} steps, tokens per second on this machine, and "
        "peak optimizer state:",
        "",
        "| optimizer | flags | loss | tok/s | state |",
        "| --- | --- | --- | --- | --- |",
    ]
    for label, flags in RUNS.items():
        if only and label.split()[0] not in only:
            continue
        try:
            rows, loss = train(program, ["--steps", str(args.steps), *flags])
        except RuntimeError as error:
            print(f"{label}: {error}", file=sys.stderr)
            continue
        speed = statistics.median(row["tokens_per_s"] for row in rows[10:])
        state = rows[-1]["memory"]["optimizer_state"]
        lines.append(f"| {label} | `{' '.join(flags[2:])}` | {loss:.3f} | {speed:,.0f} | {state / 2**20:.2f} MiB |")
        print(lines[-1], flush=True)
    if args.write:
        path = root / "docs/optimizers/example_gpt.md"
        text = path.read_text()
        if BEGIN not in text:
            sys.exit(f"{path}: no line {BEGIN}")
        head, rest = text.split(BEGIN)
        path.write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
