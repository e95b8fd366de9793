#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""That `gpu_bench kernels` has a row for every kernel of training, and right bytes and FLOPs.

    gpu_bench_test.py GPU_BENCH SOURCE_FOLDER [cuda]

Bytes are counted here from the shapes of the operands, and the printed formulas are evaluated. The rows are run on
the CPU, or on the GPU in software, at tiny sizes; every kernel that a step of GPT-2 calls must have a row, and every
row must have a partner in bench/pytorch_kernels.py.
"""
import json
import math
import re
import subprocess
import sys
import unittest.mock

failures = []


def check(right, *what):
    if not right:
        failures.append(" ".join(str(part) for part in what))


def run(*arguments):
    done = subprocess.run([sys.argv[1], *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def operands(B, T, C, H, L, V, G):
    """Per row: the operands read and written, as (count, bytes of an element)."""
    N, F = B * T, 4 * C
    half = lambda *counts: [(count, 2) for count in counts]  # bf16
    single = lambda *counts: [(count, 4) for count in counts]  # f32
    index = lambda *counts: [(count, 8) for count in counts]  # i64
    x, h, g, logits = N * C, N * F, N * G, N * V
    return {
        "copy": half(x, x), "cast_from_f32": single(x) + half(x), "transpose": half(x, x), "fill": half(x),
        "residual_add": half(x, x, x), "position_add": half(x, T * C, x), "gradient_add": half(x, x, x),
        "gelu_forward": half(h, h), "gelu_backward": half(h, h, h),
        "swiglu_forward": half(g, g, g), "swiglu_backward": half(g, g, g, g, g),
        "dropout": half(x, x), "rotary": half(x, x),
        # x, weight, bias; y, mean, 1 / deviation
        "layer_norm_forward": half(x, C, C, x) + single(N, N),
        # x, weight, mean, 1 / deviation, dy; dx, dweight, dbias
        "layer_norm_backward": half(x, C, x, x, C, C) + single(N, N),
        "rms_norm_forward": half(x, C, x) + single(N),
        "rms_norm_backward": half(x, C, x, x, C) + single(N),
        "softmax_forward": half(N * T, N * T), "softmax_backward": half(N * T, N * T, N * T),
        # logits, targets; lse, loss
        "cross_entropy_forward": half(logits) + index(N) + single(N, N),
        "cross_entropy_backward": half(logits, logits) + index(N) + single(N),
        "bias_gradient_3c": half(3 * x, 3 * C), "bias_gradient_4c": half(4 * x, 4 * C),
        "bias_gradient_c": half(x, C),
        # the rows that the ids name; ids; y
        "embedding_forward": half(x, x) + index(N), "embedding_backward": half(x, V * C) + index(N),
    }


def flops(B, T, C, H, L, V, G):
    N = B * T
    # Scores under the causal mask, counted one by one.
    seen = sum(query + 1 for query in range(T)) * B * H
    pair = 2 * (C // H)  # a multiplication and an addition per element of a head
    rows = {"attention_forward": 2 * seen * pair, "attention_backward": 5 * seen * pair,
            "square": 2 * (4096 if C >= 256 else 64) ** 3}
    for name, a, b in (("qkv", C, 3 * C), ("proj", C, C), ("fc", C, 4 * C), ("out", 4 * C, C), ("head", C, V)):
        for kind in ("forward", "forward_bias", "forward_bias_gelu", "dx", "dw"):
            if (kind == "forward_bias" and name == "head") or (kind == "forward_bias_gelu" and name != "fc"):
                continue
            rows[f"{name}_{kind}"] = 2 * N * a * b
    return rows


def value(formula, symbols):
    """`2 N C e + 2 (C e + 4 N)`: numbers, symbols and brackets side by side are multiplied."""
    product = re.sub(r"(?<=[\w)]) +(?=[\w(])", " * ", formula)
    return eval(product, {"__builtins__": {}}, symbols)


def check_rows(rows, B, T, C, H, L, V, G):
    sizes = dict(B=B, T=T, C=C, H=H, L=L, V=V, G=G)
    kernels = {row["name"]: row for row in rows if row["bench"] == "kernel"}
    expected_bytes, expected_flops = operands(**sizes), flops(**sizes)
    check(kernels.keys() == expected_bytes.keys() | expected_flops.keys(), "rows:",
          kernels.keys() ^ (expected_bytes.keys() | expected_flops.keys()))
    for name, row in kernels.items():
        # Six digits are printed.
        close = lambda a, b: math.isclose(a, b, rel_tol=1e-5)
        if name in expected_bytes:
            want = sum(count * size for count, size in expected_bytes[name])
            check(close(row["bytes"], want), name, "has", row["bytes"], "bytes, expected", want)
            text = value(row["formula"], dict(sizes, N=B * T, F=4 * C, e=2))
            check(close(row["bytes"], text), name, "has", row["bytes"], "bytes, its formula says", text)
        else:
            want = expected_flops.get(name)
            check(close(row["flops"], want), name, "has", row["flops"], "flops, expected", want)
    return kernels


def main():
    list_full = run("kernels", "--list")
    check_rows(list_full, B=16, T=1024, C=768, H=12, L=12, V=50304, G=2048)
    adam = [row for row in list_full if row.get("optimizer") == "adamw"]
    # Weight of f32 read and written, gradient and weight of bf16, two moments read and written.
    check(len(adam) == 1 and adam[0]["bytes_per_param"] == 8 + 2 + 2 + 2 * 8, adam)
    check(adam[0]["params"] == 124_475_904, "GPT-2 124M with a padded vocabulary has", adam[0]["params"])

    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    tiny = dict(B=2, T=16, C=32, H=2, L=2, V=64, G=48)
    listed = check_rows(run("kernels", "--list", "--quick"), **tiny)
    rows = run("kernels", "--quick", "--device", device)
    kernels = check_rows(rows, **tiny)
    check(list(listed) == list(kernels), "--list and a run differ")
    for row in rows:
        check(row["us"] > 0, row)
    for name, row in kernels.items():
        check(row.get("gb_per_s", 0) > 0 if "bytes" in row else row["tflop_per_s"] > 0, row)
        if device == "cuda":
            check("bytes" in row or name.startswith("attention") or row["alone_us"] > 0, row)
    heard = {(row["optimizer"], row["name"]) for row in rows if row["bench"] == "optimizer_kernel"}
    for row in list_full:
        if row["bench"] == "optimizer_kernel":
            check((row["optimizer"], row["name"]) in heard, "no time of", row["optimizer"], row["name"])

    steps = run("gpt", "--quick", "--device", device)
    check(steps[0]["bench"] == "gpt" and steps[0]["tokens_per_s"] > 0, steps[0])
    slots = {row["slot"] for row in kernels.values()} | {name for _, name in heard}
    for row in steps[1:]:
        slot = re.sub(r"^matmul_(a|b|both)_transposed$", "matmul", row["name"])
        if slot == "grad_norm":  # no kernel on a GPU: the decision about the step has it
            continue
        check(slot in slots, "a step of GPT-2 calls", row["name"], "which has no row")

    sys.path.insert(0, sys.argv[2] + "/bench")
    import pytorch_kernels
    torch = unittest.mock.MagicMock()
    tensor = torch.randn.return_value
    tensor.requires_grad_.return_value = tensor
    tensor.chunk = lambda parts, dim: [tensor] * parts
    torch.native_layer_norm.return_value = [tensor] * 3
    partners = [name for name, _ in pytorch_kernels.rows(torch, 2, 16)]
    check(sorted(partners) == sorted(kernels), "PyTorch's rows:", set(partners) ^ set(kernels))

    print("\n".join(failures))
    print(f"gpu_bench on {device}: {len(rows)} rows, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
