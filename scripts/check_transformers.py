#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens folders that Apogee saved with the transformers library, and compares losses.

    scripts/check_transformers.py BUILD FOLDER...
    scripts/check_transformers.py BUILD [--model-types gpt2,llama]

BUILD is a build folder, with bin/apogee. Without FOLDER, examples/07_finetune makes the folders: each model
type, trained for a few steps under two layouts, one of which is tensor parallelism times pipeline stages.
Of every folder, no tensor may be missing, unexpected or misshapen; the tokenizer must give as many tokens as
Apogee's; the special ids must agree; and the loss of a text must be what `apogee evaluate` prints, within
1e-5 of it in f32 and in f64 (the library computes norms and rotary positions in f32 even then). Prints a
line per folder, and last how many agree; exit status 0: all, 1: not all, 2: wrong use, 77: `transformers` or
`torch` is not installed, so nothing was checked.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TOLERANCE = 1e-5
BLOCK = 64
TEXT = "".join(f"{i} times {i + 3} is {i * (i + 3)}; \u00e9t\u00e9 {'ab' * (i % 7)}\n" for i in range(24))
LAYOUTS = {
    "one_rank": [],
    "ddp": ["--ranks", "2"],
    "zero2": ["--ranks", "2", "--plugin", "zero2"],
    "gemini": ["--ranks", "2", "--plugin", "gemini"],
    "bf16_zero1": ["--ranks", "2", "--plugin", "zero1", "--precision", "bf16"],
}
PRODUCT = "tp2_pp2"
LAYOUTS[PRODUCT] = ["--ranks", "4", "--plugin", "hybrid", "--tp-size", "2", "--plugin.pp_size=2"]
LAYOUTS[PRODUCT] += ["--plugin.num_microbatches=2"]


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def model_types(build):
    """Those that 07_new_model knows; its message about an unknown one lists them."""
    command = [build / "examples/07_finetune/07_new_model", "--model-type", "-", "--out", "unused"]
    message = subprocess.run(command, capture_output=True, text=True).stderr
    return message.split("known: ")[1].strip().split(", ")


def write_rows(work):
    """A file of rows to train on, for 07_finetune."""
    data = work / "train.jsonl"
    rows = [{"prompt": f"{i} and {i + 1}: ", "completion": str(2 * i + 1)} for i in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


def make_folders(build, types, work):
    """Yields folders that 07_finetune has made."""
    programs = build / "examples/07_finetune"
    data = write_rows(work)
    others = [name for name in LAYOUTS if name != PRODUCT]
    for i, model_type in enumerate(types):
        start = work / model_type
        run([programs / "07_new_model", "--model-type", model_type, "--out", start])
        for layout in (others[i % len(others)], PRODUCT):
            out = work / f"{model_type}-{layout}"
            flags = ["--block", 48, "--steps", 20, "--batch", 12, "--lr", 1e-2, "--sample", 0, "--threads", 2]
            run([programs / "07_finetune", "--model", start, "--data", data, "--out", out, *flags, *LAYOUTS[layout]])
            yield out / "model"


def mean_loss(model, ids):
    """Of the library's model, over windows of BLOCK tokens."""
    import torch

    total = 0.0
    with torch.no_grad():
        for at in range(0, len(ids) - 1, BLOCK):
            window = ids[at : at + BLOCK + 1]
            logits = model.eval()(torch.tensor([window[:-1]])).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, torch.tensor(window[1:]), reduction="sum").item()
    return total / (len(ids) - 1)


def their_loss(folder, ids, dtype):
    """The loss of the library, and the problems of the folder."""
    import transformers
    from transformers import AutoModelForCausalLM

    eager = {"attn_implementation": "eager"}
    if int(transformers.__version__.split(".")[0]) >= 5:
        eager["experts_implementation"] = "eager"  # the default one takes no f64
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, **eager)
    problems = [f"{kind}: {sorted(map(str, names))}" for kind, names in info.items() if names]
    return mean_loss(model, ids), problems


def check(build, folder, text_file):
    """The losses of both, for a line of the report, and the problems."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    config = json.loads((folder / "config.json").read_text())
    problems = []
    if tokenizer.eos_token_id != config["eos_token_id"]:
        problems.append(f"eos_token_id {tokenizer.eos_token_id} of the tokenizer, {config['eos_token_id']} of the config")
    shown = []
    for name, dtype in (("f32", torch.float32), ("f64", torch.float64)):
        flags = ["--data", text_file, "--block", BLOCK, "--dtype", name, "--threads", 1, "--json"]
        ours = json.loads(run([build / "bin/apogee", "evaluate", folder, *flags]))
        theirs, wrong = their_loss(folder, ids, dtype)
        problems += wrong
        if ours["tokens"] != len(ids) - 1:
            problems.append(f"{len(ids)} tokens of the library, {ours['tokens'] + 1} here")
        if not abs(ours["loss"] - theirs) <= TOLERANCE * abs(theirs):
            problems.append(f"{name}: a loss of {theirs:.9g} of the library, {ours['loss']:.9g} here")
        shown.append(f"{name} {ours['loss']:.7f} (library {theirs - ours['loss']:+.1e})")
    return ", ".join(shown), problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    parser.add_argument("--model-types")
    arguments = parser.parse_args()
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"check_transformers: not checked: no module named {' and '.join(missing)}")
        return 77
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)  # the products are small, and the tests share the cores
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    good = bad = 0
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        text_file = work / "text.txt"
        text_file.write_text(TEXT)
        folders = arguments.folders
        if not folders:
            types = arguments.model_types.split(",") if arguments.model_types else model_types(arguments.build)
            folders = make_folders(arguments.build, types, work)
        for folder in folders:
            try:
                shown, problems = check(arguments.build, folder, text_file)
            except Exception as error:  # every error about a folder is an answer
                shown, problems = "", [f"{type(error).__name__}: {error}"]
            label = folder.parent.name if folder.is_relative_to(work) else folder
            print(f"{label}: {shown}", flush=True)
            for problem in problems:
                print(f"check_transformers: {label}: {problem}")
            good, bad = (good, bad + 1) if problems else (good + 1, bad)
    print(f"{good} folders agree, {bad} do not")
    return 0 if bad == 0 and good > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
