#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times single layers, forward and backward, beside PyTorch on the same shapes and threads.

    scripts/torch_layers.py conv CONV_BENCH [--dtype f32|bf16] [--threads T] [--clock wall|processor] [--pairs P] [--only NAME]
    scripts/torch_layers.py gru RECURRENT_BENCH [...]           # and lstm

The programs are bench/conv_bench and bench/recurrent_bench of a build. Ours and PyTorch take turns; a turn is the median of several
runs. Prints the medians of both in milliseconds, and the median of the ratios of the pairs: PyTorch's time / ours, so
that more than 1 is faster than PyTorch. With one thread, --clock processor leaves out the time of other programs.
Needs PyTorch 2.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("torch_layers: needs PyTorch")

# samples, in, height, width, out, kernel, stride, padding, groups, and whether the input wants a gradient.
CONVOLUTIONS = {
    "3->64, 7x7 / 2, 64 px": (32, 3, 64, 64, 64, 7, 2, 3, 1, 0),
    "64->64, 3x3, 56 px": (8, 64, 56, 56, 64, 3, 1, 1, 1, 1),
    "128->128, 3x3, 28 px": (8, 128, 28, 28, 128, 3, 1, 1, 1, 1),
    "128->256, 3x3 / 2, 28 px": (8, 128, 28, 28, 256, 3, 2, 1, 1, 1),
    "256->512, 1x1, 14 px": (16, 256, 14, 14, 512, 1, 1, 0, 1, 1),
    "128, 3x3, depthwise, 28 px": (16, 128, 28, 28, 128, 3, 1, 1, 128, 1),
}
# samples, steps, features, units; and how many runs a turn has.
RECURRENT = {
    "16, 32, 64, 64": ((16, 32, 64, 64), 30),
    "32, 64, 128, 256": ((32, 64, 128, 256), 9),
    "64, 100, 512, 512": ((64, 100, 512, 512), 3),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def median_seconds(fn, repeats, clock):
    times = []
    for i in range(-2, repeats):
        start = clock()
        fn()
        if i >= 0:
            times.append(clock() - start)
    return statistics.median(times)


def torch_conv(shape, dtype):
    samples, channels, height, width, out, kernel, stride, padding, groups, input_gradient = shape
    x = (0.1 * torch.randn(samples, channels, height, width)).to(dtype).requires_grad_(bool(input_gradient))
    weight = (0.1 * torch.randn(out, channels // groups, kernel, kernel)).to(dtype).requires_grad_()
    bias = (0.1 * torch.randn(out)).to(dtype).requires_grad_()

    def forward():
        return F.conv2d(x, weight, bias, stride=stride, padding=padding, groups=groups)

    dy = 0.1 * torch.randn_like(forward())

    def run():
        forward().backward(dy)
        x.grad = weight.grad = bias.grad = None

    return run


def torch_recurrent(kind, shape, dtype):
    samples, steps, features, units = shape
    layer = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[kind](features, units, batch_first=True).to(dtype)
    x = torch.randn(samples, steps, features).to(dtype).requires_grad_()
    dy = torch.randn(samples, steps, units).to(dtype)

    def run():
        layer(x)[0].backward(dy)
        for tensor in [x, *layer.parameters()]:
            tensor.grad = None

    return run


def output_of(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compare(args, name, ours, theirs, repeats):
    """Prints a row. `ours` returns milliseconds, `theirs` is one run."""
    mine, other = [], []
    for _ in range(args.pairs):
        mine.append(ours())
        other.append(median_seconds(theirs, repeats, CLOCKS[args.clock]) * 1e3)
    ratios = [b / a for a, b in zip(mine, other)]
    print(
        f"{name:28} {statistics.median(mine):9.2f} {statistics.median(other):11.2f} "
        f"{statistics.median(ratios):6.2f} {min(ratios):6.2f} {max(ratios):6.2f}",
        flush=True,
    )


def heading(args, what):
    print(f"PyTorch {torch.__version__}, {args.threads} threads, {args.dtype}, {args.clock} clock, {args.pairs} pairs")
    print(f"{what:28} {'ours ms':>9} {'PyTorch ms':>11} {'ratio':>6} {'min':>6} {'max':>6}")


def recurrent(args):
    heading(args, "samples, steps, features, units")
    for name, (shape, repeats) in RECURRENT.items():
        if args.only not in name:
            continue
        command = [args.program, args.layer, str(args.threads), *map(str, shape), str(repeats), args.dtype]
        compare(
            args,
            name,
            lambda: json.loads(output_of(command))[args.clock],
            torch_recurrent(args.layer, shape, DTYPES[args.dtype]),
            repeats,
        )


def conv(args):
    heading(args, "convolution")
    for name, shape in CONVOLUTIONS.items():
        if args.only not in name:
            continue
        command = [args.program, str(args.threads), args.dtype, args.clock, str(args.repeats), *map(str, shape)]
        compare(
            args,
            name,
            lambda: float(output_of(command)) * 1e3,
            torch_conv(shape, DTYPES[args.dtype]),
            args.repeats,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", choices=["conv", "gru", "lstm"])
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=9, help="runs of a convolution in a turn")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    conv(args) if args.layer == "conv" else recurrent(args)


main()
