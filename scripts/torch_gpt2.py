#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes a GPT-2 that Booster::save_model wrote with plain PyTorch, and compares.

    scripts/torch_gpt2.py FOLDER BATCH

FOLDER has config.json and the weights, in one file or several. BATCH is JSON: `tokens` and `targets`, [B, T]
each; `loss`, the mean cross entropy, and `logits`, [B, T, vocabulary], that the library computed; and
`tolerance`, how far from them PyTorch's may be, relative to the larger of 1 and the number. Where
`transformers` is installed, its GPT2LMHeadModel.from_pretrained(FOLDER) is asked, too. Prints a line for each,
also where it is skipped. Exit status 0: all that could be asked agree, 1: not, 2: wrong use, 77: `torch` or
`safetensors` is not installed, so nothing was compared.
"""
import importlib.util
import json
import pathlib
import sys


def load(folder):
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.exists():
        files = set(json.loads(index.read_text())["weight_map"].values())
    return {name: tensor for file in sorted(files) for name, tensor in load_file(folder / file).items()}


def gpt2(config, weights, tokens):
    """Logits. Written from the paper and the names of the weights."""
    import torch
    from torch.nn import functional

    def norm(x, name):
        weight, bias = weights[name + ".weight"], weights[name + ".bias"]
        return functional.layer_norm(x, x.shape[-1:], weight, bias, config["layer_norm_epsilon"])

    def linear(x, name):  # Conv1D: [in, out]
        return x @ weights[name + ".weight"] + weights[name + ".bias"]

    def attention(x, name):
        batch, time, width = x.shape
        heads = (batch, time, config["n_head"], width // config["n_head"])
        q, k, v = (part.reshape(heads).transpose(1, 2) for part in linear(x, name + ".c_attn").split(width, -1))
        scores = q @ k.transpose(-1, -2) / heads[3] ** 0.5
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return linear(mixed.transpose(1, 2).reshape(batch, time, width), name + ".c_proj")

    def gelu(x):
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))

    table = weights["transformer.wte.weight"]
    x = table[tokens] + weights["transformer.wpe.weight"][: tokens.shape[1]]
    for layer in range(config["n_layer"]):
        name = f"transformer.h.{layer}"
        x = x + attention(norm(x, name + ".ln_1"), name + ".attn")
        x = x + linear(gelu(linear(norm(x, name + ".ln_2"), name + ".mlp.c_fc")), name + ".mlp.c_proj")
    return norm(x, "transformer.ln_f") @ weights.get("lm_head.weight", table).T


def with_transformers(folder, weights, tokens):
    from transformers import GPT2LMHeadModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    dtype = weights["transformer.wte.weight"].dtype
    return GPT2LMHeadModel.from_pretrained(folder, torch_dtype=dtype).eval()(tokens).logits


def compare(who, logits, batch):
    """Whether loss and logits are the library's."""
    import torch
    from torch.nn import functional

    targets = torch.tensor(batch["targets"])
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    want = torch.tensor(batch["logits"], dtype=torch.float64)
    error = ((logits.double() - want).abs() / want.abs().clamp(min=1)).max().item()
    error = max(error, abs(loss - batch["loss"]) / max(1.0, abs(batch["loss"])))
    good = error <= batch["tolerance"]  # NaN is not
    print(
        f"{who}, {logits.dtype}: loss {loss:.10g}, the library's {batch['loss']:.10g}; largest error, of "
        f"{want.numel()} logits too: {error:.3g}, allowed {batch['tolerance']:.3g}: {'good' if good else 'WRONG'}"
    )
    return good


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    missing = [name for name in ("torch", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"torch_gpt2: not compared: no module named {' and '.join(missing)}")
        return 77
    import torch

    folder = pathlib.Path(sys.argv[1])
    batch = json.loads(pathlib.Path(sys.argv[2]).read_text())
    config = json.loads((folder / "config.json").read_text())
    weights, tokens = load(folder), torch.tensor(batch["tokens"])
    with torch.no_grad():
        good = compare("PyTorch " + torch.__version__, gpt2(config, weights, tokens), batch)
        if importlib.util.find_spec("transformers"):
            import transformers

            who = "transformers " + transformers.__version__
            good = compare(who, with_transformers(folder, weights, tokens), batch) and good
        else:
            print("transformers: 1 skipped: not installed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
