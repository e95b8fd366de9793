#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens adapters that Apogee saved with the PEFT library, and compares losses.

    scripts/check_peft.py BUILD [--model-types gpt2,llama]

BUILD is a build folder, with bin/apogee. examples/07_finetune trains adapters of small models under several
layouts. PEFT must load each without missing or unexpected tensors, and the loss of a text must be what
`apogee evaluate --adapter` prints, within 1e-5 of it in f32 and in f64. PEFT then saves the adapter, which
Apogee must read with the same loss. Prints a line per adapter, and last how many agree; exit status 0: all,
1: not all, 77: `peft`, `transformers` or `torch` is not installed, so nothing was checked.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import warnings

from check_transformers import BLOCK, TEXT, TOLERANCE, mean_loss, run, write_rows

CASES = {
    "llama": {
        "one_rank": ["--lora-rank", 4],
        "gemini": ["--lora-rank", 4, "--ranks", 2, "--plugin", "gemini"],
        "tp2_pp2": ["--lora-rank", 4, "--ranks", 4, "--plugin", "hybrid", "--tp-size", 2, "--plugin.pp_size=2",
                    "--plugin.num_microbatches=2"],
        "dora": ["--lora-rank", 3, "--dora", "--lora-target", "q_proj", "down_proj"],
        "embedding": ["--lora-rank", 3, "--lora-target", "embed_tokens", "v_proj"],
    },
    "gpt2": {
        "tp2_zero2": ["--lora-rank", 4, "--lora-target", "c_attn", "c_proj", "--ranks", 2, "--plugin", "hybrid",
                      "--tp-size", 2, "--zero-stage", 2],
    },
    "qwen2": {"zero1": ["--lora-rank", 2, "--lora-alpha", 7, "--ranks", 2, "--plugin", "zero1"]},
}


def check(build, base, adapter, again, text_file):
    """The losses of both, for a line of the report, and the problems."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(base)(TEXT)["input_ids"]
    problems, shown = [], []

    def our_loss(folder, name):
        flags = ["--data", text_file, "--block", BLOCK, "--dtype", name, "--threads", 1, "--json"]
        return json.loads(run([build / "bin/apogee", "evaluate", base, "--adapter", folder, *flags]))["loss"]

    def compare(name, ours, theirs):
        if not abs(ours - theirs) <= TOLERANCE * abs(theirs):
            problems.append(f"{name}: a loss of {theirs:.9g} of the library, {ours:.9g} here")

    for name, dtype in (("f32", torch.float32), ("f64", torch.float64)):
        model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, attn_implementation="eager")
        without = mean_loss(model, ids)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*missing.*")  # of tensors
            model = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False).to(dtype)
        theirs, ours = mean_loss(model, ids), our_loss(adapter, name)
        compare(name, ours, theirs)
        if abs(theirs - without) <= 100 * TOLERANCE * abs(theirs):
            problems.append(f"{name}: the adapter does nothing: {theirs:.9g} with it, {without:.9g} without")
        if name == "f32":
            model.save_pretrained(again)
            compare("saved by PEFT", our_loss(again, name), theirs)
        shown.append(f"{name} {ours:.7f} (library {theirs - ours:+.1e})")
    return ", ".join(shown), problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--model-types", default=",".join(CASES))
    arguments = parser.parse_args()
    missing = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"check_peft: not checked: no module named {' and '.join(missing)}")
        return 77
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    good = bad = 0
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        text_file, data = work / "text.txt", write_rows(work)
        text_file.write_text(TEXT)
        programs = arguments.build / "examples/07_finetune"
        for model_type in arguments.model_types.split(","):
            base = work / model_type
            run([programs / "07_new_model", "--model-type", model_type, "--out", base])
            for layout, flags in CASES[model_type].items():
                label = f"{model_type}-{layout}"
                out = work / label
                common = ["--block", 48, "--steps", 20, "--batch", 12, "--lr", 5e-2, "--sample", 0, "--threads", 2]
                try:
                    run([programs / "07_finetune", "--model", base, "--data", data, "--out", out, *common, *flags])
                    shown, problems = check(arguments.build, base, out / "adapter", work / f"{label}-again", text_file)
                except Exception as error:  # every error about an adapter is an answer
                    shown, problems = "", [f"{type(error).__name__}: {error}"]
                print(f"{label}: {shown}", flush=True)
                for problem in problems:
                    print(f"check_peft: {label}: {problem}")
                good, bad = good + (not problems), bad + bool(problems)
    print(f"{good} agree, {bad} do not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
