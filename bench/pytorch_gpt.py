# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of compare_pytorch.py: one process, one measurement, one JSON line on stdout.

The model is gpt_bench.cc's: token and learned position embeddings, pre-norm blocks with packed
qkv, causal softmax attention and a tanh-GELU MLP, a head tied to the token table; mean cross entropy;
AdamW. bf16 uses torch.autocast, PyTorch's mixed precision on the CPU.

    /usr/bin/python3 bench/pytorch_gpt.py --precision bf16 --threads 2 --steps 5
"""

import argparse
import json
import math
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, DIM, HEADS, BLOCK, BATCH, VOCAB = 6, 384, 6, 256, 8, 4096
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_linear",
            "mkldnn::_linear_pointwise")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc, self.out = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def attention(self, x, mask):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, DIM // HEADS).transpose(1, 2)
                   for part in self.qkv(x).split(DIM, dim=2))
        scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(DIM // HEADS)) + mask
        y = F.softmax(scores, dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, length, DIM))

    def forward(self, x, mask):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(BLOCK, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(DIM)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens, mask):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        return F.linear(self.ln_f(x), self.wte.weight)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the timed ones")
    parser.add_argument("--profile", action="store_true",
                        help="one more step under the profiler: the share of time outside products")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    mask = torch.full((BLOCK, BLOCK), float("-inf")).triu(1).to(dtype)
    tokens = torch.randint(VOCAB, (BATCH, BLOCK + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            logits = model(inputs, mask)
            loss = F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    first_loss = step()
    for _ in range(args.warmup - 1):
        step()
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    result = {"tokens_per_s": BATCH * BLOCK / statistics.median(seconds), "first_loss": first_loss,
              "last_loss": loss, "parameters": sum(p.numel() for p in model.parameters()),
              "torch": torch.__version__}
    if args.profile:
        with torch.autograd.profiler.profile() as profile:
            step()
        times = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
        products = sum(us for key, us in times.items() if key in PRODUCTS)
        result["outside_products"] = 1 - products / sum(times.values())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
