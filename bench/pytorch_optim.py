# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of compare_optim.py: one process, one measurement, one JSON line on stdout.

torch.optim.AdamW with its defaults (separate operators for every parameter; with --foreach, operators on lists of
parameters) on f32 parameters in the shapes of optim_bench.cc. Values and gradients are in [-0.5, 0.5).

    /usr/bin/python3 bench/pytorch_optim.py --params 33554432 --threads 1 --repeats 5
"""

import argparse
import json
import time

import torch

WIDTH = 512


def shapes(budget):
    """The shapes of Model in optim_bench.cc: twelve matrices per layer, an eighth for embeddings."""
    result = [(max(1, budget // 8 // WIDTH), WIDTH)]
    count = result[0][0] * WIDTH
    while count + 12 * WIDTH * WIDTH <= budget:
        layer = []
        for rows in (3 * WIDTH, WIDTH, 4 * WIDTH):
            layer += [(rows, WIDTH), (rows,)]
        layer += [(WIDTH, 4 * WIDTH)] + 5 * [(WIDTH,)]
        count += sum(torch.Size(shape).numel() for shape in layer)
        result += layer
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--params", type=int, default=32 << 20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5, help="timed steps, after one untimed step")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--foreach", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    params = [torch.nn.Parameter(torch.rand(shape) - 0.5) for shape in shapes(args.params)]
    for param in params:
        param.grad = torch.rand(param.shape) - 0.5
    optimizer = torch.optim.AdamW(params, **({"foreach": True} if args.foreach else {}))
    clock = time.thread_time if args.clock == "processor" else time.perf_counter
    seconds = []
    for _ in range(args.repeats + 1):
        start = clock()
        optimizer.step()
        seconds.append(clock() - start)
    print(json.dumps({"ms": 1e3 * min(seconds[1:]), "parameters": sum(p.numel() for p in params),
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()
