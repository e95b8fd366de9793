#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of training a small Mixtral with transformers, alone or in turns with moe_bench.

  bench/moe/transformers_moe.py --precision bf16 --threads 2 --experts grouped_mm
  bench/moe/transformers_moe.py --precision f32 --threads 2 --program build/test/bench/moe_bench

About 12 million of its 36 million parameters are active per token: 6 layers, 8 experts of which a token takes
2, width 384, 8 sequences of 256 tokens, vocabulary 4096, AdamW, random tokens, the auxiliary loss included.
bf16 is torch.autocast. With --program both sides run in turns, each in a process of its own, under each
implementation of experts that this version of transformers has; the ratio (ours / transformers) is that to
the fastest, and the median of the turns'. Prints one JSON line.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

VOCAB, BLOCK, BATCH = 4096, 256, 8
IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm")


def train(args):
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    config = transformers.MixtralConfig(
        vocab_size=VOCAB, hidden_size=384, intermediate_size=512, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=6, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=BLOCK,
        output_router_logits=True, router_aux_loss_coef=0.02, tie_word_embeddings=False, use_cache=False)
    model = transformers.MixtralForCausalLM._from_config(config, experts_implementation=args.experts)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(VOCAB, (BATCH, BLOCK))

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(2):
        step()
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {"tokens_per_s": BATCH * BLOCK / statistics.median(seconds),
            "parameters": model.num_parameters(), "torch": torch.__version__,
            "transformers": transformers.__version__}


def run(command, threads):
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"}
    return json.loads(done.stdout.splitlines()[-1])


def pairs(args):
    flags = ["--precision", args.precision, "--threads", args.threads, "--steps", args.steps]
    theirs, ours = {name: [] for name in IMPLEMENTATIONS}, []
    failed = {}
    for _ in range(args.pairs):
        mine = run([args.program, *flags], args.threads)
        if "error" in mine:
            sys.exit(f"{args.program}: {mine['error']}")
        ours.append(mine["tokens_per_s"])
        for name in IMPLEMENTATIONS:
            if name in failed:
                continue
            result = run([sys.executable, __file__, *flags, "--experts", name], args.threads)
            if "error" in result:
                failed[name] = result["error"]
            else:
                theirs[name].append(result["tokens_per_s"])
                versions = {key: result[key] for key in ("torch", "transformers", "parameters")}
    medians = {name: statistics.median(speeds) for name, speeds in theirs.items() if speeds}
    if not medians:
        sys.exit(f"transformers failed: {failed}")
    best = max(medians, key=medians.get)
    ratios = sorted(a / b for a, b in zip(ours, theirs[best]))
    return {"precision": args.precision, "threads": args.threads, "ours": round(statistics.median(ours)),
            "theirs": {name: round(speed) for name, speed in medians.items()},
            "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 3) for r in ratios],
            "failed": failed, **versions}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps, after two untimed ones")
    parser.add_argument("--experts", choices=IMPLEMENTATIONS, default="eager")
    parser.add_argument("--program", help="moe_bench, to run in turns with")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    print(json.dumps(pairs(args) if args.program else train(args)))


if __name__ == "__main__":
    main()
