#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT with every optimizer, at three rates and with three seeds.

    bench/optimizer_curves.py run  --build build/release --results docs/optimizer_curves.json [--jobs 2]
    bench/optimizer_curves.py time --build build/release --results docs/optimizer_curves.json
    bench/optimizer_curves.py draw --results docs/optimizer_curves.json

`run` writes the mean validation loss and the mean training curve of each rate; it goes on where it was stopped.
`time` measures the median time of a step, alone on the machine; AdamW's is measured just before each.
`draw` writes the table of docs/optimizers/rates_and_seeds.md and its pictures. The model: 2 layers of width 96, 64 bytes of
context, 254,592 parameters. It trains on the default text, 512 bytes per step, 300 steps.
"""

import argparse
import concurrent.futures
import json
import math
import pathlib
import statistics
import sys

import optimizer_table

MODEL = "--layers 2 --heads 4 --dim 96 --block 64 --batch 8 --sample 0 --threads 1".split()
STEPS, TIMED_STEPS, SEEDS, FACTORS = 300, 40, (1, 2, 3), (0.4, 1, 2.5)
WINDOW = 10  # steps per point of a curve
BEGIN, END = "<!-- curves: begin -->", "<!-- curves: end -->"

CONSTANT = ["--schedule", "constant", "--optim.warmup_steps=30"]
RANK = ["--optim.rank=32"]
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
    "galore_adafactor": (8e-2, ["--optim.relative_step=false", *RANK]),
    "galore_adamw": (8e-3, RANK),
    "galore_adamw8bit": (8e-3, RANK),
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
    flags = [*MODEL, "--steps", str(steps), "--seed", str(seed), "--optimizer", name, "--lr", f"{rate:g}", *RUNS[name][1]]
    return optimizer_table.train(program, flags)


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
                return name, rate, f"{name}, rate {rate}: {error}"
            train_loss = [row["loss"] for row in rows]
            curves.append([statistics.mean(train_loss[i : i + WINDOW]) for i in range(0, STEPS, WINDOW)])
            losses.append(loss)
        curve = [round(statistics.mean(points), 4) for points in zip(*curves)]
        return name, rate, {"losses": [round(loss, 4) for loss in losses], "curve": curve}

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, *job) for job in todo]):
            name, rate, result = done.result()
            if isinstance(result, str):
                print(result, flush=True)
                continue
            results.setdefault(name, {}).setdefault("rates", {})[rate] = result
            save(args.results, results)
            print(name, rate, result["losses"], flush=True)


def best(result):
    """The rate with the lowest mean validation loss."""
    return min(result["rates"], key=lambda rate: statistics.mean(result["rates"][rate]["losses"]))


def time(args):
    results = load(args.results)
    program = program_of(args)
    seconds = lambda rows: statistics.median(row["seconds"] for row in rows[10:])
    adamw = float(best(results["adamw"]))
    for name in RUNS:
        if name not in results or (args.only and name not in args.only.split(",")):
            continue
        reference = seconds(train(program, "adamw", adamw, 1, TIMED_STEPS)[0])
        rows, _ = train(program, name, float(best(results[name])), 1, TIMED_STEPS)
        if name == "adamw":
            results[name]["step_ms"] = round(1e3 * reference, 2)
        results[name]["step_over_adamw"] = 1 if name == "adamw" else round(seconds(rows) / reference, 3)
        memory = rows[-1]["memory"]
        results[name]["state_bytes_per_parameter"] = round(4 * memory["optimizer_state"] / memory["parameter"], 2)
        save(args.results, results)
        print(name, results[name]["step_over_adamw"], results[name]["state_bytes_per_parameter"], flush=True)


# Lines of the pictures: the others differ little from one of these.
DRAWN = {
    "adamw": "#1f5fbf",
    "muon": "#d1342f",
    "normuon": "#e58a1f",
    "soap": "#2b8a3e",
    "dion": "#8c5a2b",
    "schedule_free_adamw": "#7b3fb5",
    "lion": "#0b9aa0",
    "adafactor": "#c2307f",
    "lamb": "#6b7a12",
    "galore_adamw": "#4f6d8f",
    "scaled_adam": "#b08900",
    "sgd": "#555555",
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, HIGHEST = 900, 480, 60, 230, 46, 46, 2.8


def picture(title, x_label, lines):
    """lines: name -> [(x, loss)]. Axes from the data; losses above HIGHEST are at the upper edge."""
    x_end = max(points[-1][0] for points in lines.values())
    losses = [loss for points in lines.values() for _, loss in points]
    low, high = min(losses) - 0.05, min(max(losses), HIGHEST)
    x_of = lambda x: LEFT + (WIDTH - LEFT - RIGHT) * x / x_end
    y_of = lambda y: TOP + (HEIGHT - TOP - BOTTOM) * (high - min(y, high)) / (high - low)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="26" font-size="15">{title}</text>',
    ]
    tick = 10 ** math.floor(math.log10(x_end / 3))
    tick *= next(m for m in (1, 2, 5, 10) if x_end / (tick * m) <= 7)
    for i in range(int(x_end / tick) + 1):
        x = x_of(i * tick)
        out.append(f'<line x1="{x:.0f}" y1="{TOP}" x2="{x:.0f}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{x:.0f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{i * tick:g}</text>')
    for i in range(math.ceil(low * 10), math.floor(high * 10) + 1):
        out.append(f'<line x1="{LEFT}" y1="{y_of(i / 10):.1f}" x2="{WIDTH - RIGHT}" y2="{y_of(i / 10):.1f}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y_of(i / 10) + 4:.1f}" text-anchor="end">{i / 10:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{x_label}</text>')
    for row, (name, points) in enumerate(sorted(lines.items(), key=lambda line: line[1][-1][1])):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{DRAWN[name]}" stroke-width="1.8"/>')
        end_x, end_y, y = x_of(points[-1][0]), y_of(points[-1][1]), TOP + 10 + 20 * row
        out.append(f'<circle cx="{end_x:.1f}" cy="{end_y:.1f}" r="3" fill="{DRAWN[name]}"/>')
        out.append(f'<circle cx="{WIDTH - RIGHT + 24}" cy="{y - 4}" r="5" fill="{DRAWN[name]}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 36}" y="{y}">{points[-1][1]:.2f} {name}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def draw(args):
    results = load(args.results)
    docs = args.results.resolve().parent
    curves = {name: results[name]["rates"][best(results[name])]["curve"] for name in DRAWN if name in results}
    steps = {name: [((i + 0.5) * WINDOW, y) for i, y in enumerate(curve)] for name, curve in curves.items()}
    ms = results["adamw"]["step_ms"]
    seconds = {
        name: [(x * ms * results[name]["step_over_adamw"] / 1e3, y) for x, y in points] for name, points in steps.items()
    }
    title = "Training loss (nats per byte), 254,592 parameters: best of three rates, mean of three seeds"
    (docs / "optimizer_steps.svg").write_text(picture(title, "steps", steps))
    (docs / "optimizer_seconds.svg").write_text(picture(title, "seconds on one core", seconds))

    lines = [
        "| optimizer | validation loss | seeds | best rate | of | step over AdamW's | state, bytes per parameter |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    mean = lambda name: statistics.mean(results[name]["rates"][best(results[name])]["losses"])
    for name in sorted((n for n in RUNS if n in results), key=mean):
        result = results[name]
        losses = result["rates"][best(result)]["losses"]
        rates = ", ".join(sorted(result["rates"], key=float))
        lines.append(
            f"| `{name}` | {mean(name):.3f} | {min(losses):.3f} to {max(losses):.3f} | {best(result)} | {rates} | "
            f"{result['step_over_adamw']:.2f} | {result['state_bytes_per_parameter']:.1f} |"
        )
    page = docs / "optimizers" / "rates_and_seeds.md"
    text = page.read_text()
    if BEGIN not in text or END not in text:
        sys.exit(f"{page}: the table belongs between the lines {BEGIN} and {END}")
    page.write_text(text.split(BEGIN)[0] + BEGIN + "\n" + "\n".join(lines) + "\n" + END + text.split(END)[1])


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
    parser.add_argument("--only", default="", help="of time: names between commas")
    args = parser.parse_args()
    {"run": run, "time": time, "draw": draw}[args.command](args)


if __name__ == "__main__":
    main()
