#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the training speed of single layers with PyTorch: forward and backward, in f32, on the CPU.

  scripts/torch_layers.py gru BENCH [--threads 1] [--pairs 7] [--clock wall]      # also: lstm

BENCH is the benchmark program of a build (gru and lstm: bench/recurrent_bench). Ours and PyTorch take turns, each turn in a process of
its own with as many threads; a row has the medians of both and of the pairs' ratios. Run it with a Python that has PyTorch 2. On a busy
machine, --clock processor with one thread counts only the time in which a step ran.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

# Samples, steps, features, units; and how many turns are timed.
RECURRENT_SHAPES = [((16, 32, 64, 64), 30), ((32, 64, 128, 256), 9), ((64, 100, 512, 512), 3)]


def median_ms(step, repeats):
    """The median time of `step` in milliseconds by both clocks, after two turns to warm up."""
    wall, processor = [], []
    for turn in range(repeats + 2):
        begin, processor_begin = time.perf_counter(), time.process_time()
        step()
        if turn >= 2:
            wall.append(1e3 * (time.perf_counter() - begin))
            processor.append(1e3 * (time.process_time() - processor_begin))
    return {"wall": statistics.median(wall), "processor": statistics.median(processor)}


def torch_recurrent(kind, threads, samples, steps, features, units, repeats):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    layer = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[kind](features, units, batch_first=True)
    x = torch.randn(samples, steps, features, requires_grad=True)
    dy = torch.randn(samples, steps, units)

    def step():
        for tensor in [x, *layer.parameters()]:
            tensor.grad = None
        layer(x)[0].backward(dy)

    return {**median_ms(step, repeats), "torch": torch.__version__}


def compare_recurrent(args):
    print(f"{'samples, steps, features, units':34} {'ours ms':>9} {'PyTorch ms':>11} {'PyTorch / ours':>15}")
    for shape, repeats in RECURRENT_SHAPES:
        words = [args.layer, args.threads, *shape, repeats]
        pairs = [(run_json([args.bench, *words]), run_json([sys.executable, __file__, "torch", *words]))
                 for _ in range(args.pairs)]
        ours = statistics.median(pair[0][args.clock] for pair in pairs)
        theirs = statistics.median(pair[1][args.clock] for pair in pairs)
        ratios = sorted(pair[1][args.clock] / pair[0][args.clock] for pair in pairs)
        print(f"{', '.join(map(str, shape)):34} {ours:9.2f} {theirs:11.2f} {statistics.median(ratios):8.2f} "
              f"({ratios[0]:.2f}, {ratios[-1]:.2f})")
    print(f"PyTorch {pairs[0][1]['torch']}, {args.threads} threads, {args.pairs} pairs, {args.clock} clock")


def run_json(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"torch_layers: `{' '.join(map(str, words))}` failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


COMPARE = {"gru": compare_recurrent, "lstm": compare_recurrent}
TORCH = {"gru": torch_recurrent, "lstm": torch_recurrent}


def main():
    if sys.argv[1:2] == ["torch"]:  # a turn of PyTorch, in a process of its own
        numbers = [int(word) for word in sys.argv[3:]]
        return print(json.dumps(TORCH[sys.argv[2]](sys.argv[2], *numbers)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", choices=COMPARE)
    parser.add_argument("bench")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    args = parser.parse_args()
    COMPARE[args.layer](args)


main()
