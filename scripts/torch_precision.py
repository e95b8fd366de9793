#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares how far bf16 training is from f64 training, here and with torch.autocast.

    scripts/torch_precision.py --program build/test/bench/precision_bench [--seeds 3] [--only llama/sgd]

For GPT-2 and Llama and for AdamW, SGD and LAMB the program trains in f64, in bf16, and in bf16 with a bf16
residual stream. PyTorch trains the same model from the same weights on the same text in f64 and, with f32
weights, under torch.autocast(bf16). Prints a line for each: the distance of a run,

    ||update - update in f64|| / ||update in f64||,   over all parameters, from our f64 run,

and first that of PyTorch's f64 run, which shows that both sides train the same. Numbers are geometric means over
the seeds, of weights and text; in brackets is the last ratio of each seed. The exit status is 1 if a mean is
farther from f64 than torch.autocast's. Needs PyTorch 2 and safetensors.
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from torch.nn import functional

LAYERS, HEADS, BATCH = 4, 4, 8
FROZEN = "c_attn.bias"  # as precision_bench
RUNS = {"f64": ["--precision", "f64"], "ours": ["--precision", "bf16"],
        "bf16 residual": ["--precision", "bf16", "--bf16-residual"]}


def attention(q, k, v):
    """[B, T, H, d], grouped queries -> [B, T, H d]."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).flatten(2)


def gpt2(w, tokens):
    width = w["transformer.wte.weight"].shape[1]

    def norm(x, name):
        return functional.layer_norm(x, (width,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(x, name):  # Conv1D: [in, out]
        return functional.linear(x, w[name + ".weight"].T, w[name + ".bias"])

    x = functional.embedding(tokens, w["transformer.wte.weight"])
    x = x + w["transformer.wpe.weight"][: tokens.shape[1]]
    for layer in range(LAYERS):
        name = f"transformer.h.{layer}"
        qkv = linear(norm(x, name + ".ln_1"), name + ".attn.c_attn")
        heads = (part.unflatten(2, (HEADS, width // HEADS)) for part in qkv.split(width, -1))
        x = x + linear(attention(*heads), name + ".attn.c_proj")
        h = functional.gelu(linear(norm(x, name + ".ln_2"), name + ".mlp.c_fc"), approximate="tanh")
        x = x + linear(h, name + ".mlp.c_proj")
    return functional.linear(norm(x, "transformer.ln_f"), w["transformer.wte.weight"])


def rotated(y):
    """Rotate-half positions, computed in f32 at least and rounded once; [B, T, H, d]."""
    x = y if y.dtype == torch.float64 else y.float()
    half = x.shape[3] // 2
    turns = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None, None] * turns
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(y.dtype)


def llama(w, tokens):
    width = w["model.embed_tokens.weight"].shape[1]
    size = width // HEADS

    def norm(x, name):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)  # in f32: x is the residual stream
        return x * scale * w[name + ".weight"]

    def linear(x, name):
        return functional.linear(x, w[name + ".weight"])

    x = functional.embedding(tokens, w["model.embed_tokens.weight"])
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        h = norm(x, name + ".input_layernorm")
        q, k, v = (linear(h, f"{name}.self_attn.{part}_proj").unflatten(2, (-1, size)) for part in "qkv")
        x = x + linear(attention(rotated(q), rotated(k), v), name + ".self_attn.o_proj")
        h = norm(x, name + ".post_attention_layernorm")
        gate = functional.silu(linear(h, name + ".mlp.gate_proj"))
        x = x + linear(gate * linear(h, name + ".mlp.up_proj"), name + ".mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


class Lamb(torch.optim.Optimizer):
    """optim/adam/lamb.h."""

    def __init__(self, params, lr, weight_decay, betas=(0.9, 0.999), eps=1e-6):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), eps = group["betas"], group["eps"]
            for w in group["params"]:
                s = self.state[w]
                if not s:
                    s.update(t=0, m=torch.zeros_like(w), v=torch.zeros_like(w))
                s["t"] += 1
                s["m"].lerp_(w.grad, 1 - b1)
                s["v"].mul_(b2).addcmul_(w.grad, w.grad, value=1 - b2)
                u = s["m"] / (1 - b1 ** s["t"]) / ((s["v"] / (1 - b2 ** s["t"])).sqrt() + eps)
                u += group["weight_decay"] * w
                ratio = w.norm() / u.norm() if w.norm() > 0 and u.norm() > 0 else 1.0
                w -= group["lr"] * ratio * u


# The options are precision_bench's.
OPTIMIZERS = {"adamw": lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=1e-2),
              "sgd": lambda params: torch.optim.SGD(params, lr=0.03, momentum=0.9),
              "lamb": lambda params: Lamb(params, lr=2e-3, weight_decay=0.01)}


def train(model, optimizer, start, tokens, autocast):
    dtype = torch.float32 if autocast else torch.float64
    w = {name: tensor.to(dtype).clone() for name, tensor in start.items()}
    trained = [tensor.requires_grad_() for name, tensor in w.items() if not name.endswith(FROZEN)]
    stepper = OPTIMIZERS[optimizer](trained)
    for batch in tokens:
        stepper.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(w, batch[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        stepper.step()
    return {name: tensor.detach().double() for name, tensor in w.items()}


def run(args, model, optimizer, flags):
    """The weights before and after, and the text."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run.safetensors"
        subprocess.run([args.program, "--model", model, "--optimizer", optimizer, "--steps", str(args.steps),
                        "--threads", "1", "--out", out, *flags], check=True, stdout=subprocess.DEVNULL)
        tensors = load_file(out)
    part = lambda prefix: {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return part("start."), part("end."), tensors["tokens"]


def distance(start, want, got):
    difference = sum(((got[name] - want[name]) ** 2).sum().item() for name in want)
    update = sum(((want[name] - start[name]) ** 2).sum().item() for name in want)
    return (difference / update) ** 0.5


def distances(args, model, optimizer, seed):
    ends = {}
    for name, flags in RUNS.items():
        start, ends[name], tokens = run(args, model.__name__, optimizer, [*flags, "--seed", str(seed)])
    for name, autocast in (("torch", False), ("autocast", True)):
        ends[name] = train(model, optimizer, start, tokens, autocast)
    return {name: distance(start, ends["f64"], end) for name, end in ends.items() if name != "f64"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="precision_bench")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="a part of gpt2/adamw, ...")
    args = parser.parse_args()
    torch.set_num_threads(1)
    worse = 0
    print(f"PyTorch {torch.__version__}, {args.steps} steps, seeds 1 to {args.seeds}\n")
    print("| model | optimizer | torch f64 | torch.autocast | bf16 residual stream | default | / autocast |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for model in (gpt2, llama):
        for optimizer in OPTIMIZERS:
            if args.only not in f"{model.__name__}/{optimizer}":
                continue
            far = [distances(args, model, optimizer, seed) for seed in range(1, args.seeds + 1)]
            mean = {name: statistics.geometric_mean(each[name] for each in far) for name in far[0]}
            ratios = ", ".join(f"{each['ours'] / each['autocast']:.2f}" for each in far)
            worse += mean["ours"] > mean["autocast"]
            print(f"| {model.__name__} | {optimizer} | {mean['torch']:.1e} | {mean['autocast']:.3e} | "
                  f"{mean['bf16 residual']:.3e} | {mean['ours']:.3e} | "
                  f"{mean['ours'] / mean['autocast']:.3f} ({ratios}) |", flush=True)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
