#!/usr/bin/env python3
"""Reads weights that Booster::save_model or `apogee reshard --weights` wrote back with Python's
`safetensors`, and checks them.

    scripts/check_safetensors.py FOLDER

Every tensor must load, the index (if any) must name the file of every tensor and nothing else, and its
total_size must be the bytes that were read. Prints one line; exit status 0: all good, 1: not, 2: wrong
use, 77: `safetensors` or `numpy` is not installed, so nothing was checked.
"""
import json
import pathlib
import sys


def tensors_of(path):
    """Name -> bytes of each tensor of a file."""
    from safetensors import safe_open
    from safetensors.numpy import load_file

    with safe_open(path, framework="np") as file:
        names = list(file.keys())
        if (file.metadata() or {}).get("format") != "pt":
            raise ValueError(f"{path}: its metadata must say format = pt")
    try:
        return {name: array.nbytes for name, array in load_file(path).items()}
    except (KeyError, TypeError):  # bfloat16, which NumPy lacks: sizes come from the header
        header = path.read_bytes()
        header = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
        return {n: header[n]["data_offsets"][1] - header[n]["data_offsets"][0] for n in names}


def check(folder):
    """Problems, the number of tensors, their bytes."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        tensors = tensors_of(folder / "model.safetensors")
        return [], len(tensors), sum(tensors.values())
    says = json.loads(index.read_text())
    found = {}
    problems = []
    for file in sorted(set(says["weight_map"].values())):
        for name, size in tensors_of(folder / file).items():
            if says["weight_map"].get(name) != file:
                problems.append(f"{file}: the index does not say that {name} is there")
            found[name] = size
    problems += [f"{name}: is in no file" for name in says["weight_map"] if name not in found]
    total = sum(found.values())
    if says["metadata"]["total_size"] != total:
        problems.append(f"total_size is {says['metadata']['total_size']}, the files have {total}")
    return problems, len(found), total


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        import numpy  # noqa: F401
        import safetensors  # noqa: F401
    except ImportError as error:
        print(f"check_safetensors: not checked: {error}")
        return 77
    try:
        problems, count, total = check(pathlib.Path(sys.argv[1]))
    except Exception as error:  # whatever a reader says about a bad file is the answer
        problems, count, total = [f"{type(error).__name__}: {error}"], 0, 0
    for problem in problems:
        print(f"check_safetensors: {problem}")
    print(f"{count} tensors, {total} bytes, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
