#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares plans with real runs on this machine: `apogee plan --check`, over many setups.

    scripts/check_plan.py memory [--build BUILD_DIR] [--rows 300] [--seed 1] [--table] [--big]
    scripts/check_plan.py times  [--build BUILD_DIR] [--measure] [--worlds 1 2 4] [--keep FILE]

memory: rows drawn from the grid of models of 1, 10 and (--big) 100 million parameters x worlds 1, 2, 4 x plugins x
recompute x accumulation 1 and 3 x optimizers, with every optimizer and every plugin among them. A row is a process of its
own. The ledger's peak may be off by 2 %, and the peak of the process beyond its start by 5 % where that is at least
256 MiB.

times: 30 setups, each with all its plugins and meshes. A step may be off by 15 %, and the plugin with the shortest
planned step may be 5 % slower than the fastest one in a tenth of the setups. Needs an idle machine. --measure measures
this machine's rates first; else those of the last time count.

--table also prints Markdown, and --keep leaves all rows as JSON. Exit status: 0 all within the bounds, 1 not.
"""
import argparse
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
MAX_LEDGER, MAX_PROCESS, MIN_PROCESS_BYTES = 0.02, 0.05, 256 * MIB
MAX_STEP, MAX_LOSS, MIN_RIGHT = 0.15, 0.05, 0.9


def config(family, layers, heads, dim, vocab):
    if family == "gpt2":
        return {"model_type": "gpt2", "vocab_size": vocab, "n_positions": 1024, "n_layer": layers, "n_head": heads,
                "n_embd": dim}
    return {"model_type": "llama", "vocab_size": vocab, "hidden_size": dim, "num_hidden_layers": layers,
            "intermediate_size": dim * 8 // 3 // 8 * 8, "num_attention_heads": heads, "num_key_value_heads": heads // 2,
            "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


class Apogee:
    def __init__(self, build):
        self.program = pathlib.Path(build).resolve() / "bin/apogee"
        self.folder = tempfile.TemporaryDirectory()

    def run(self, *arguments, check=True):
        return subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, check=check)

    def plan(self, model, *arguments):
        """The JSON of a plan, or None and the program's complaint."""
        path = pathlib.Path(self.folder.name) / "config.json"
        path.write_text(json.dumps(model))
        ran = self.run("plan", path, "--json", *arguments, check=False)
        return (json.loads(ran.stdout), "") if ran.returncode == 0 else (None, ran.stderr.strip())

    def optimizers(self):
        return self.run("options").stdout.split()


def off(measured, planned):
    return measured / planned - 1


# Parameters in millions -> layers, heads, dim, vocabulary; and samples and tokens of a step that a real run does in
# seconds.
SIZES = {1: ((4, 4, 128, 512), 24, 256), 10: ((6, 6, 384, 1024), 12, 128), 100: ((12, 12, 768, 16384), 12, 32)}


def memory_rows(apogee, options):
    sizes = [1, 10, 100] if options.big else [1, 10]
    optimizers = apogee.optimizers()
    grid = list(itertools.product(["gpt2", "llama"], sizes, [1, 2, 4], [False, True], [1, 3]))
    chosen = random.Random(options.seed)
    names = {}  # of the candidates of a world

    def rows():
        for turn in itertools.count():
            family, size, world, recompute, accumulate = chosen.choice(grid)
            shape, batch, tokens = SIZES[size]
            model = config(family, *shape)
            arguments = ["--ranks", world, "--batch", batch, "--tokens", tokens, "--accumulate", accumulate,
                         "--optimizer", optimizers[turn % len(optimizers)]] + (["--recompute"] if recompute else [])
            if world not in names:
                names[world] = [row["name"] for row in apogee.plan(model, "--ranks", world)[0]["rows"]]
                chosen.shuffle(names[world])
            names[world].append(names[world].pop(0))
            yield family, size, arguments, names[world][-1], model

    return rows()


def check_memory(apogee, options):
    failures, done, refused, ledger_offs, process_offs = [], 0, 0, [], []
    worst = {}
    for family, size, arguments, name, model in memory_rows(apogee, options):
        if done == options.rows:
            break
        label = " ".join(map(str, [family, f"{size}M", name, *arguments]))
        plan, complaint = apogee.plan(model, "--check", "--only", name, *arguments)
        row = plan["rows"][0] if plan else {"refusal": complaint}
        if "refusal" in row:
            refused += 1
            if refused > 20 + options.rows:
                sys.exit(f"check_plan: too many rows are refused; the last one: {label}: {row['refusal']}")
            if "real run failed" in row["refusal"]:
                failures.append(f"{label}: {row['refusal']}")
            continue
        done += 1
        ledger = max((off(m["peak_bytes"], p["peak_bytes"]) for m, p in zip(row["measured_ranks"], row["ranks"])), key=abs)
        ledger_offs.append(ledger)
        measured = row.get("measured_process_bytes", 0)
        process = off(measured, row["total_bytes"])
        if abs(ledger) > MAX_LEDGER:
            failures.append(f"{label}: ledger {ledger:+.1%}")
        if measured >= MIN_PROCESS_BYTES:
            process_offs.append(process)
            if abs(process) > MAX_PROCESS:
                failures.append(f"{label}: process {process:+.1%} of {measured / MIB:.0f} MiB")
        key = (family, size)
        worst.setdefault(key, []).append((ledger, process if measured >= MIN_PROCESS_BYTES else None))
        print(f"{label}: ledger {ledger:+.2%}, process {process:+.1%} of {measured / MIB:.0f} MiB", flush=True)
    if options.table:
        print("\n| model | rows | ledger, worst | rows >= 256 MiB | process, median | process, worst |\n| - | - | - | - | - | - |")
        for (family, size), offs in sorted(worst.items()):
            processes = [p for _, p in offs if p is not None]
            print(f"| {family} {size} M | {len(offs)} | {max((l for l, _ in offs), key=abs):+.2%} | {len(processes)} | "
                  + (f"{statistics.median(processes):+.1%} | {max(processes, key=abs):+.1%} |" if processes else "- | - |"))
    print(f"check_plan: {done} rows, {refused} refused, ledger at most {max(map(abs, ledger_offs), default=0):.2%} off, "
          f"process at most {max(map(abs, process_offs), default=0):.1%} off ({len(process_offs)} rows)")
    return failures


# Family, shape, samples, tokens, and more.
TIMES = [
    ("gpt2", (4, 4, 256, 256), 8, 128, []), ("gpt2", (4, 4, 256, 256), 8, 128, ["--recompute"]),
    ("gpt2", (2, 4, 128, 512), 16, 64, []), ("gpt2", (8, 8, 256, 512), 8, 64, []),
    ("gpt2", (4, 8, 512, 1024), 8, 64, []), ("gpt2", (6, 6, 384, 1024), 4, 128, ["--optimizer", "lamb"]),
    ("llama", (4, 4, 256, 256), 8, 128, []), ("llama", (4, 4, 256, 256), 8, 128, ["--accumulate", "2"]),
    ("llama", (8, 4, 128, 1000), 16, 128, []), ("llama", (4, 8, 512, 2000), 4, 128, ["--optimizer", "adafactor"]),
]


def check_times(apogee, options):
    if options.measure:
        apogee.run("plan", "gpt2", "--measure", "--only", "ddp", "--ranks", 2)
    failures, rows, right, setups = [], [], 0, 0
    kept = []
    for (family, shape, batch, tokens, more), world in itertools.product(TIMES, options.worlds):
        arguments = ["--ranks", world, "--batch", batch, "--tokens", tokens, *more]
        label = " ".join(map(str, [family, *shape, *arguments]))
        plan, complaint = apogee.plan(config(family, *shape), "--check", *arguments)
        if plan is None:
            failures.append(f"{label}: {complaint}")
            continue
        setups += 1
        timed = [row for row in plan["rows"] if "measured_step_seconds" in row]
        fastest = min(row["measured_step_seconds"] for row in timed)
        named = min(timed, key=lambda row: row["step_seconds"])
        loss = named["measured_step_seconds"] / fastest - 1
        right += loss <= MAX_LOSS
        offs = {row["name"]: off(row["measured_step_seconds"], row["step_seconds"]) for row in timed}
        rows += [(abs(value), name, label) for name, value in offs.items()]
        kept.append({"label": label, "loss": loss, "rows": timed})
        print(f"{label}: {named['name']} named, {loss:.1%} slower than the fastest; steps "
              + ", ".join(f"{name} {value:+.1%}" for name, value in offs.items()), flush=True)
    for value, name, label in rows:
        if value > MAX_STEP:
            failures.append(f"{label}: {name} {value:.1%} off")
    if right < MIN_RIGHT * setups:
        failures.append(f"the plugin named is within {MAX_LOSS:.0%} of the fastest in {right} of {setups} setups")
    if options.keep:
        pathlib.Path(options.keep).write_text(json.dumps(kept))
    values = [value for value, _, _ in rows]
    print(f"check_plan: {setups} setups, {len(rows)} rows: median {statistics.median(values):.1%} off, "
          f"{sum(value <= MAX_STEP for value in values)} within {MAX_STEP:.0%}, worst {max(values):.1%}; "
          f"the plugin named is within {MAX_LOSS:.0%} of the fastest in {right} of {setups}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "times"])
    parser.add_argument("--build", default=ROOT / "build/test")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--keep")
    options = parser.parse_args()
    apogee = Apogee(options.build)
    failures = (check_memory if options.what == "memory" else check_times)(apogee, options)
    for failure in failures:
        print(f"check_plan: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


main()
