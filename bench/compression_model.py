#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When do 1-bit messages pay? Models the time of a training step as a function of the network's bandwidth.

    bench/compression_model.py --out docs/compressed_communication.svg
    bench/compression_model.py --params 124e6 --ranks 8 --compute 1.0 --pack-ns 2.6     # the defaults

The step computes for --compute seconds on --ranks ranks and has --params parameters. Averaging f32 gradients
sends 8 (n - 1) / n bytes per parameter and rank, and can overlap with backward (two thirds of a step). 1-bit
messages send 1/32 of that after backward; packing and unpacking costs --pack-ns nanoseconds per parameter
(pack, unpack, keep_error and collect / n of compression_bench). The model ignores latency, since there are only
two collectives per step. Prints a table; --out writes the plot, as SVG.
"""

import argparse
import math

BACKWARD = 2 / 3  # fraction of a step that communication can overlap with


def step_times(bits_per_second, args):
    """Seconds per step: gradients after backward, gradients overlapped with backward, 1-bit messages."""
    share = (args.ranks - 1) / args.ranks
    dense = 8 * share * args.params * 8 / bits_per_second
    compressed = dense / 32 + args.pack_ns * 1e-9 * args.params
    overlapped = args.compute + max(0, dense - BACKWARD * args.compute)
    return args.compute + dense, overlapped, args.compute + compressed


def svg(args):
    width, height, left, bottom, top, right = 760, 440, 70, 60, 50, 210
    low, high = -1.0, 2.0  # decades of Gb/s
    points = [low + (high - low) * k / 120 for k in range(121)]
    curves = list(zip(*[step_times(10 ** (p + 9), args) for p in points]))
    y_low = math.floor(math.log10(args.compute * 0.9))
    y_high = math.ceil(math.log10(max(curves[0])))
    plot_width, plot_height = width - left - right, height - top - bottom

    def place(x, seconds):
        y = (math.log10(seconds) - y_low) / (y_high - y_low)
        return left + plot_width * (x - low) / (high - low), top + plot_height * (1 - y)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="26" font-size="15">Seconds per step, {args.params / 1e6:.0f} M parameters, '
        f"{args.ranks} ranks, {args.compute:g} s of computing (model)</text>",
    ]
    for decade in range(int(low), int(high) + 1):
        x, _ = place(decade, args.compute)
        out.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{height - bottom}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{height - bottom + 20}" text-anchor="middle">{10.0**decade:g}</text>')
    for decade in range(y_low, y_high + 1):
        _, y = place(low, 10.0**decade)
        out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - right}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g} s</text>')
    middle = left + plot_width / 2
    out.append(f'<text x="{middle:.0f}" y="{height - 16}" text-anchor="middle">bandwidth per rank, Gb/s</text>')
    names = ["f32 gradients", "f32, behind backward", "1-bit messages"]
    for curve, name, colour, dash in zip(curves, names, ["#b33", "#d80", "#06c"], ["", "6 4", ""]):
        path = " ".join("%.1f,%.1f" % place(p, s) for p, s in zip(points, curve))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
                   f'stroke-dasharray="{dash}"/>')
        y = top + 20 + 24 * names.index(name)
        x = width - right + 16
        out.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" stroke="{colour}" '
                   f'stroke-width="2" stroke-dasharray="{dash}"/>')
        out.append(f'<text x="{x + 30}" y="{y}">{name}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=float, default=124e6)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--compute", type=float, default=1.0)
    parser.add_argument("--pack-ns", type=float, default=2.6)
    parser.add_argument("--out")
    args = parser.parse_args()
    print("Gb/s    f32 gradients  behind backward  1-bit messages  speed-up")
    for gigabits in (0.1, 0.3, 1, 3, 10, 30, 100):
        plain, overlapped, compressed = step_times(gigabits * 1e9, args)
        print(f"{gigabits:<6g}  {plain:11.2f} s  {overlapped:13.2f} s  {compressed:12.2f} s"
              f"  {overlapped / compressed:7.2f}")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(svg(args))


if __name__ == "__main__":
    main()
