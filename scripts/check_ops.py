#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares all differentiable ops with PyTorch.

  scripts/check_ops.py OP_VALUES            # prints the largest errors, in units in the last place of f32
  scripts/check_ops.py OP_VALUES --write    # writes tests/autograd/op_values.json, PyTorch's results in f64

OP_VALUES is the program tests/op_values of a build. Needs PyTorch (Debian: python3-torch). For the table, both run in f32 on the
same inputs, and PyTorch in f64 says what is right. An error is in ulps of the largest element of the result.
"""
import json
import pathlib
import subprocess
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("check_ops: needs PyTorch; on Debian: apt-get install python3-torch")


def index(shape, size):
    n = int(torch.tensor(shape).prod())
    return ((7 * torch.arange(n) + 3) % size).reshape(shape)


def ignored(labels):
    labels[2] = -100
    return labels


def fractions(x):
    return (((7 * torch.arange(x.numel()) + 3) % 16) / 16).to(x.dtype).reshape(x.shape)


def every_third(*shape):
    n = int(torch.tensor(shape).prod())
    return (torch.arange(n) % 3 == 0).reshape(shape)


def var(x, dims, keepdim=False):
    return torch.var(x, dims, unbiased=True, keepdim=keepdim)


def tensor_of(entry, dtype):
    return torch.tensor(entry["values"], dtype=dtype).reshape(entry["shape"])


def run(case, dtype):
    """The result and the gradients of a case in PyTorch."""
    inputs = [tensor_of(entry, dtype).requires_grad_() for entry in case["inputs"]]
    names = dict(zip("xyzuvwp", inputs))
    result = eval(case["torch"], {**globals(), **names})
    weights = torch.tensor(case["weights"], dtype=dtype).reshape(result.shape)
    (result * weights).sum().backward()
    return [result.detach()] + [x.grad if x.grad is not None else torch.zeros_like(x) for x in inputs]


def ulps(got, want):
    scale = max(float(want.abs().max()), 1e-30)
    return float((got.double() - want).abs().max()) / (scale * 2.0**-23)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    write = "--write" in sys.argv[2:]
    dtype = "f64" if write else "f32"
    cases = json.loads(subprocess.run([sys.argv[1], dtype], check=True, capture_output=True).stdout)
    if write:
        golden = {}
        for case in cases:
            result, *gradients = [t.flatten().tolist() for t in run(case, torch.float64)]
            golden[case["name"]] = {"weights": case["weights"], "result": result, "gradients": gradients}
        path = pathlib.Path(__file__).parent.parent / "tests/autograd/op_values.json"
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in golden.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(f"check_ops: {len(golden)} cases written to {path}")
        return
    worst = {}
    for case in cases:
        exact, theirs = run(case, torch.float64), run(case, torch.float32)
        ours = [tensor_of(entry, torch.float32) for entry in [case["result"]] + case["gradients"]]
        op = case["name"].split("[")[0].split("(")[0].rstrip("-012")
        row = worst.setdefault(op, [0.0] * 4)
        for i in range(len(exact)):
            column = 0 if i == 0 else 2
            row[column] = max(row[column], ulps(ours[i].reshape(exact[i].shape), exact[i]))
            row[column + 1] = max(row[column + 1], ulps(theirs[i], exact[i]))
    print(f"{len(cases)} cases, PyTorch {torch.__version__}; largest errors in f32 ulps")
    print(f"{'op':28} {'result':>8} {'PyTorch':>8} {'gradient':>9} {'PyTorch':>8}")
    for op, row in sorted(worst.items()):
        print(f"{op:28} {row[0]:8.2f} {row[1]:8.2f} {row[2]:9.2f} {row[3]:8.2f}")


main()
