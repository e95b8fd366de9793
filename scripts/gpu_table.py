#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ends a run of gpu_check.sh: its rows as JSON, and each number beside its bound and PyTorch's.

    gpu_table.py ROWS REPORT.json

ROWS has a line `name<TAB>verdict<TAB>detail` per check; a measured one's detail is a JSON object.
"""
import json
import pathlib
import sys

# H100 and H200: dense bf16.
PEAK_TFLOP_PER_S = 989


def main():
    rows, measured = [], {}
    for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
        name, verdict, detail = line.split("\t", 2)
        if verdict == "measured":
            detail = json.loads(detail)
            key = tuple(detail.get(field) for field in ("bench", "optimizer", "dtype", "name"))
            measured.setdefault(key, {})["pytorch" if name.endswith("PyTorch") else "apogee"] = detail
        rows.append({"check": name, "verdict": verdict, "detail": detail})
    pathlib.Path(sys.argv[2]).write_text(json.dumps(rows, indent=1) + "\n")
    for key, sides in measured.items():
        ours, theirs = sides.get("apogee"), sides.get("pytorch")
        if ours is None:
            continue
        parts = [" ".join(str(part) for part in key if part is not None)]
        if "share" in ours:
            parts.append(f"{ours['share']:.2f} of the rate of copies (bound 0.85)")
        if ours["bench"] == "gpt":
            parts.append(f"{ours['tokens_per_s']:.0f} tokens/s, MFU {ours['tflop_per_s'] / PEAK_TFLOP_PER_S:.2f}")
        if "us" in ours:
            parts.append(f"{ours['tflop_per_s']:.0f} TFLOP/s")
        if ours.get("alone_us"):
            parts.append(f"{ours['alone_us'] / ours['us']:.2f} of cuBLASLt alone (bound 0.95)")
        if theirs is not None:
            for field, better in (("ms", "lower"), ("us", "lower"), ("tokens_per_s", "higher"),
                                  ("peak_bytes", "lower")):
                if field in ours and field in theirs:
                    ratio = theirs[field] / ours[field] if better == "lower" else ours[field] / theirs[field]
                    parts.append(f"{field}: {ratio:.2f} x PyTorch")
        print("; ".join(parts))
    failed = sum(row["verdict"] == "FAILED" for row in rows)
    skipped = sum(row["verdict"] == "skipped" for row in rows)
    passed = sum(row["verdict"] == "passed" for row in rows)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")


if __name__ == "__main__":
    main()
