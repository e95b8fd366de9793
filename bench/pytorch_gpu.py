#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of gpu_bench: the same numbers on the same GPU, one JSON line each.

    python3 bench/pytorch_gpu.py steps|products|gpt [--params N] [--batch B] [--block T] [--steps S]

Steps: torch.optim.AdamW(fused=True), f32. Products: torch.matmul, bf16. GPT: GPT-2 124M with
scaled_dot_product_attention, bf16 autocast and torch.compile. Exit status 77 if torch or a GPU is missing and
nothing was measured.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    print("pytorch_gpu: no torch", file=sys.stderr)
    sys.exit(77)


def median_seconds(repeats, fn):
    times = []
    for repeat in range(-2, repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        if repeat >= 0:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def steps(args):
    width, params, total = 2048, [], 0
    while total + 12 * width * width <= args.params:
        shapes = [(rows * width, width) for rows in (3, 1, 4)] + [(width, 4 * width)]
        shapes += [(rows * width,) for rows in (3, 1, 4)] + [(width,)] * 5
        for shape in shapes:
            params.append(nn.Parameter(torch.full(shape, 0.5, device="cuda")))
            params[-1].grad = torch.full(shape, 0.01, device="cuda")
            total += params[-1].numel()
    optimizer = torch.optim.AdamW(params, lr=1e-3, fused=True)
    seconds = median_seconds(args.repeats, optimizer.step)
    print(json.dumps({"bench": "step", "optimizer": "adamw", "dtype": "f32", "params": total, "ms": seconds * 1e3,
                      "gb_per_s": 28 * total / seconds / 1e9}))


def products(args):
    tokens = args.batch * args.block
    for name, m, n, k in (("square", 4096, 4096, 4096), ("qkv", tokens, 2304, 768), ("proj", tokens, 768, 768),
                          ("fc", tokens, 3072, 768), ("out", tokens, 768, 3072), ("head", tokens, 50304, 768)):
        a = torch.randn((m, k), device="cuda", dtype=torch.bfloat16)
        b = torch.randn((k, n), device="cuda", dtype=torch.bfloat16)
        seconds = median_seconds(args.repeats, lambda: [torch.matmul(a, b) for _ in range(10)]) / 10
        print(json.dumps({"bench": "product", "name": name, "m": m, "n": n, "k": k, "us": seconds * 1e6,
                          "tflop_per_s": 2 * m * n * k / seconds / 1e12}))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = (part.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)
                   for part in self.qkv(self.ln_1(x)).split(dim, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, dim))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, block, vocab=50304, dim=768, layers=12, heads=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(block, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def gpt(args):
    torch.manual_seed(1)
    model = Gpt(args.block).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    compiled = torch.compile(model)
    tokens = torch.randint(50304, (args.batch, args.block), device="cuda")
    targets = tokens.roll(-1, 1)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    for _ in range(3):  # compiles
        step()
    torch.cuda.reset_peak_memory_stats()
    seconds = median_seconds(args.steps, step)
    print(json.dumps({"bench": "gpt", "precision": "bf16", "batch": args.batch, "block": args.block,
                      "tokens_per_s": args.batch * args.block / seconds,
                      "peak_bytes": torch.cuda.max_memory_reserved()}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("section", choices=["steps", "products", "gpt"])
    parser.add_argument("--params", type=int, default=500_000_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("pytorch_gpu: torch sees no GPU", file=sys.stderr)
        sys.exit(77)
    {"steps": steps, "products": products, "gpt": gpt}[args.section](args)


if __name__ == "__main__":
    main()
