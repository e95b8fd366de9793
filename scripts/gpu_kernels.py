#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of docs/gpu_kernels.md from the rows of `gpu_bench kernels --list`.

    scripts/gpu_kernels.py build/native/bench/gpu_bench            # writes it
    scripts/gpu_kernels.py --check build/native/bench/gpu_bench    # exit status 1 if it is not up to date
    scripts/gpu_kernels.py --measured out/gpu_check/rows.jsonl build/native/bench/gpu_bench

--measured prints the table with the times of a run of gpu_check.sh, to look at; what it measured belongs into
MEASURED_US below, with its date on the page.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gpu_kernels.md"
BEGIN, END = "<!-- begin: scripts/gpu_kernels.py -->", "<!-- end: scripts/gpu_kernels.py -->"

# An H200: bytes per second of a copy, and FLOPs per second of a large bf16 product.
COPY_RATE, PRODUCT_RATE = 4.3e12, 788e12
# From a reading of the sources. Other kernels are expected at these shares of the rates above.
ESTIMATED_US = {
    "attention_forward": 160, "attention_backward": 540, "cross_entropy_forward": 420,
    "cross_entropy_backward": 830, "layer_norm_forward": 19, "layer_norm_backward": 29, "residual_add": 19,
    "gradient_add": 19, "bias_gradient_3c": 25, "bias_gradient_4c": 33, "bias_gradient_c": 8, "gelu_backward": 100,
    "square": 174,
}
MEMORY_SHARE, PRODUCT_SHARE = 0.85, 0.74
# On an H200 on 2026-11-26 (docs/gpu.md): microseconds, or TFLOP/s of products without epilogue.
MEASURED_US = {"attention_forward": 293, "attention_backward": 828, "layer_norm_backward": 80}
MEASURED_TFLOP_PER_S = {"qkv_forward": 573, "proj_forward": 515, "fc_forward": 611, "out_forward": 706,
                        "head_forward": 603, "square": 793}


def amount(value):
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} "


def time(us):
    return "" if us is None else f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def cells(row, measured):
    name = row["name"]
    if row["bench"] == "optimizer_kernel":
        label = f'{row["optimizer"]}: `{name}`'
        work, formula = row["bytes"], f'{row["bytes_per_param"]:g} P'
        calls, shape, is_bytes = 1, f'{row["params"]}', True
    else:
        label, calls, shape, is_bytes = f"`{name}`", row["calls"], row["shape"], "bytes" in row
        work, formula = row.get("bytes") or row["flops"], row["formula"]
    bound = work / (COPY_RATE if is_bytes else PRODUCT_RATE) * 1e6
    estimated = ESTIMATED_US.get(name, bound / (MEMORY_SHARE if is_bytes else PRODUCT_SHARE))
    if name in MEASURED_TFLOP_PER_S:
        seen = work / MEASURED_TFLOP_PER_S[name] / 1e6
    else:
        seen = MEASURED_US.get(name)
    seen = measured.get((row.get("optimizer"), name), seen)
    number = amount(work) + ("B" if is_bytes else "FLOP")
    return [label, shape, str(calls or ""), f"{formula}: {number}", time(bound), time(estimated), time(seen)]


def table(program, measured):
    listed = subprocess.run([program, "kernels", "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [json.loads(line) for line in listed.splitlines()]
    lines = ["| kernel | shape | calls | bytes or FLOPs | bound, us | estimated, us | measured, us |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    # Those that move next to nothing have no bound.
    lines += ["| " + " | ".join(cells(row, measured)) + " |" for row in rows if row.get("bytes") or row.get("flops")]
    return "\n".join([BEGIN, *lines, END])


def measured_in(path):
    times = {}
    for line in pathlib.Path(path).read_text().splitlines():
        row = json.loads(line)
        detail = row["detail"]
        if row["verdict"] == "measured" and not row["check"].endswith(", PyTorch") and "us" in detail:
            times[(detail.get("optimizer"), detail["name"])] = detail["us"]
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measured")
    args = parser.parse_args()
    if args.measured:
        print(table(args.program, measured_in(args.measured)))
        return
    text = PAGE.read_text()
    new = table(args.program, {})
    old = re.search(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)
    if old is None:
        sys.exit(f"{PAGE} has no block that begins with {BEGIN}")
    if old.group() == new:
        return
    if args.check:
        sys.exit(f"{PAGE} is not what `gpu_bench kernels --list` says; run scripts/gpu_kernels.py {args.program}")
    PAGE.write_text(text[:old.start()] + new + text[old.end():])


if __name__ == "__main__":
    main()
