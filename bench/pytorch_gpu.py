#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of gpu_bench: the same numbers on the same GPU, one JSON line each.

    python3 bench/pytorch_gpu.py kernels|steps|gpt [--graphed] [--params N] [--batch B] [--block T] [--steps S]

kernels: the rows of `gpu_bench kernels` (pytorch_kernels.py). steps: torch.optim with fused=True, f32. gpt: GPT-2
124M with scaled_dot_product_attention, bf16 autocast and torch.compile; --graphed: with CUDA graphs
(mode="reduce-overhead"). Kernels are timed by events, after 300 ms of work; the median counts. Exit status 77 if
torch or a GPU is missing and nothing was measured.
"""
import argparse
import json
import statistics
import sys
import time

import pytorch_kernels

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    print("pytorch_gpu: no torch", file=sys.stderr)
    sys.exit(77)


def show(**row):
    print(json.dumps(row), flush=True)


def device_seconds(args, fn):
    """The median seconds of a call, as bench/gpu/measure.h measures them."""
    def sample(calls):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            fn()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e-3 / calls

    begin = time.perf_counter()
    while True:
        last = sample(1)
        if time.perf_counter() - begin >= args.warm_ms * 1e-3:
            break
    calls = int(min(max(2e-3 / max(last, 1e-9), 1), 100))
    return statistics.median(sample(calls) for _ in range(args.repeats))


def host_seconds(repeats, fn):
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def kernels(args):
    for name, call in pytorch_kernels.rows(torch, args.batch, args.block):
        show(bench="kernel", name=name, dtype="bf16", us=device_seconds(args, call) * 1e6)


def steps(args):
    width, params, total = 2048, [], 0
    while total + 12 * width * width <= args.params or not params:
        shapes = [(rows * width, width) for rows in (3, 1, 4)] + [(width, 4 * width)]
        shapes += [(rows * width,) for rows in (3, 1, 4)] + [(width,)] * 5
        for shape in shapes:
            params.append(nn.Parameter(torch.full(shape, 0.5, device="cuda")))
            params[-1].grad = torch.full(shape, 0.01, device="cuda")
            total += params[-1].numel()
    for label, make in (("adamw", lambda: torch.optim.AdamW(params, lr=1e-3, fused=True)),
                        ("sgd, momentum", lambda: torch.optim.SGD(params, lr=1e-3, momentum=0.9, fused=True))):
        optimizer = make()
        show(bench="step", optimizer=label, dtype="f32", params=total,
             ms=device_seconds(args, optimizer.step) * 1e3)


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
    compiled = torch.compile(model, mode="reduce-overhead" if args.graphed else "default")
    tokens = torch.randint(50304, (args.batch, args.block), device="cuda")
    targets = tokens.roll(-1, 1)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    for _ in range(5):  # compiles, and captures graphs
        step()
    torch.cuda.reset_peak_memory_stats()
    seconds = host_seconds(args.steps, step)
    show(bench="gpt", name="graphed" if args.graphed else "eager", dtype="bf16", batch=args.batch, block=args.block,
         tokens_per_s=args.batch * args.block / seconds, peak_bytes=torch.cuda.max_memory_reserved())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("section", choices=["kernels", "steps", "gpt"])
    parser.add_argument("--graphed", action="store_true")
    parser.add_argument("--params", type=int, default=500_000_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--warm-ms", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="few samples of small sizes")
    args = parser.parse_args()
    if args.quick:
        args.params, args.batch, args.block, args.steps, args.repeats, args.warm_ms = 60_000, 2, 16, 2, 1, 0
    if not torch.cuda.is_available():
        print("pytorch_gpu: torch sees no GPU", file=sys.stderr)
        sys.exit(77)
    {"kernels": kernels, "steps": steps, "gpt": gpt}[args.section](args)


if __name__ == "__main__":
    main()
