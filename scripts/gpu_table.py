#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what gpu_check.sh has found: the checks that did not pass, and each number beside its bound and PyTorch's.

    gpu_table.py rows.jsonl

A row's detail is a JSON object if its verdict is `measured`; that of a check whose name ends in `, PyTorch` is
PyTorch's. Lines that are no row are counted, so that a run that was killed while it wrote one still has a table.
"""
import json
import pathlib
import sys

# H100 and H200: dense bf16.
PEAK_TFLOP_PER_S = 989
# What names a number; the rest of its row is what was measured.
KEYS = ("bench", "optimizer", "dtype", "name")


def read_rows(path):
    rows, broken = [], 0
    for line in pathlib.Path(path).read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
            rows.append((row["check"], row["verdict"], row["detail"]))
        except (ValueError, KeyError, TypeError):
            broken += 1
    return rows, broken


def against_pytorch(ours, theirs):
    for field, better in (("ms", "lower"), ("us", "lower"), ("tokens_per_s", "higher"), ("peak_bytes", "lower")):
        if ours.get(field) and theirs.get(field):
            ratio = theirs[field] / ours[field] if better == "lower" else ours[field] / theirs[field]
            yield f"{field}: {ratio:.2f} x PyTorch"


def line_of(key, ours, theirs):
    parts = [" ".join(str(part) for part in key if part is not None)]
    for field, unit in (("us", "us"), ("ms", "ms"), ("gb_per_s", "GB/s"), ("tflop_per_s", "TFLOP/s")):
        if ours.get(field):
            parts.append(f"{ours[field]:.6g} {unit}")
    if ours.get("share"):
        parts.append(f"{ours['share']:.2f} of the rate of copies (bound 0.85)")
    if "tokens_per_s" in ours:
        parts.append(f"{ours['tokens_per_s']:.0f} tokens/s, MFU {ours['tflop_per_s'] / PEAK_TFLOP_PER_S:.2f}")
    if ours.get("alone_us"):
        parts.append(f"{ours['alone_us'] / ours['us']:.2f} of cuBLASLt alone (bound 0.95)")
    return "; ".join(parts + list(against_pytorch(ours, theirs or {})))


def main():
    rows, broken = read_rows(sys.argv[1])
    measured = {}
    for check, verdict, detail in rows:
        if verdict == "measured":
            key = tuple(detail.get(field) for field in KEYS)
            measured.setdefault(key, {})["theirs" if check.endswith(", PyTorch") else "ours"] = detail
    for key, sides in measured.items():
        if "ours" in sides:
            print(line_of(key, sides["ours"], sides.get("theirs")))
    for check, verdict, detail in rows:
        if verdict in ("FAILED", "cut off", "skipped"):
            print(f"{verdict}: {check}: {detail}")
    if broken:
        print(f"{broken} lines of {sys.argv[1]} are no rows")


if __name__ == "__main__":
    main()
