#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of greedy generation with transformers, and beside generate_bench.

  bench/transformers_generate.py --make llama DIR          # writes a folder with random weights
  bench/transformers_generate.py DIR --threads 1 --tokens 512
  bench/transformers_generate.py DIR --threads 1 --program build/native/bench/generate_bench

With --program both sides run in turns, each in a process of its own, and the ratio (ours / transformers) is
the median of the turns'. Both continue the same prompt with the model of the same folder; the first tokens
must be equal. Prints one JSON line.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
import transformers


def make(kind, folder):
    """About 40 million parameters."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 16000, "max_position_embeddings": 1024, "bos_token_id": None, "eos_token_id": None}
    if kind == "llama":
        config = transformers.LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=8,
                                          num_attention_heads=8, num_key_value_heads=8, **sizes)
    else:
        config = transformers.GPT2Config(n_embd=512, n_layer=8, n_head=8, n_positions=1024,
                                         **{k: v for k, v in sizes.items() if k != "max_position_embeddings"})
    config.initializer_range = 0.06  # so that the tokens of a text differ
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return model.num_parameters()


def generate(folder, prompt, tokens, threads):
    """(tokens per second, the new tokens)"""
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = torch.tensor([[t % 400 for t in range(prompt)]])
    # Without a mask the library takes tokens of the padding's id for padding.
    options = {"attention_mask": torch.ones_like(text), "do_sample": False, "use_cache": True,
               "pad_token_id": 0, "eos_token_id": None}
    with torch.inference_mode():
        model.generate(text, max_new_tokens=2, **options)
        begin = time.perf_counter()
        out = model.generate(text, max_new_tokens=tokens, **options)
        seconds = time.perf_counter() - begin
    return tokens / seconds, out[0, prompt:].tolist()


def run(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def pairs(args):
    sizes = ["--threads", str(args.threads), "--prompt", str(args.prompt), "--tokens", str(args.tokens)]
    ours, theirs, same = [], [], 0
    for _ in range(args.pairs):
        a = run([args.program, "--folder", args.folder, *sizes])
        b = run([sys.executable, __file__, args.folder, *sizes])
        ours.append(a["tokens_per_s"])
        theirs.append(b["tokens_per_s"])
        same = next((i for i, (x, y) in enumerate(zip(a["tokens"], b["tokens"])) if x != y), len(a["tokens"]))
        if same == 0:
            sys.exit("the first tokens differ")
    ratios = [a / b for a, b in zip(ours, theirs)]
    return {"threads": args.threads, "ours": round(statistics.median(ours), 1),
            "transformers": round(statistics.median(theirs), 1),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(r, 3) for r in sorted(ratios)], "same_tokens": same}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--make", choices=["llama", "gpt2"], help="write the folder and end")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--program", help="generate_bench, to run in turns with")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    if args.make:
        result = {"parameters": make(args.make, args.folder)}
    elif args.program:
        result = pairs(args)
    else:
        speed, tokens = generate(args.folder, args.prompt, args.tokens, args.threads)
        result = {"tokens_per_s": round(speed, 2), "tokens": tokens}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
