#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads weights that Booster::save_model or `apogee reshard --weights` wrote back with Python's
`safetensors`, as NumPy arrays and as PyTorch tensors, and checks them.

    scripts/check_safetensors.py FOLDER [--bytes SAVED]

Every tensor must load with the dtype, the shape and, bit for bit, the bytes that its file's header tells of;
the index (if any) must name the file of every tensor and nothing else, and its total_size must be the bytes
that were read. --bytes: SAVED has a file NAME.DTYPE of bytes (NAME.BF16) per tensor that was saved; those
must be what is read, all of them. Prints one line, which counts what was compared with which library and
what was skipped for want of it; exit status 0: all good, 1: not, 2: wrong use, 77: `safetensors` or `numpy`
is not installed, so nothing was checked.
"""
import collections
import importlib.util
import json
import pathlib
import sys

TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
NUMPY_NAMES = {name: dtype for name, dtype in TORCH_NAMES.items() if name != "BF16"}  # NumPy lacks it

Stored = collections.namedtuple("Stored", "dtype shape data")


class Report:
    def __init__(self):
        self.problems = []
        self.compared = collections.Counter()  # tensors by library
        self.skipped = collections.Counter()
        self.bytes = 0


def stored_in(path):
    """Name -> Stored, as plain code reads them."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    if header.pop("__metadata__", {}).get("format") != "pt":
        raise ValueError(f"{path}: its metadata must say format = pt")
    return {
        name: Stored(it["dtype"], it["shape"], raw[start + it["data_offsets"][0] : start + it["data_offsets"][1]])
        for name, it in header.items()
    }


def with_numpy(path, want):
    """Name -> dtype, shape, bytes of those that NumPy has a dtype for."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        if set(file.keys()) != set(want):
            raise ValueError(f"{path}: safetensors sees other tensors")
        arrays = {name: file.get_tensor(name) for name in want if want[name].dtype in NUMPY_NAMES}
    return {name: (str(array.dtype), list(array.shape), array.tobytes()) for name, array in arrays.items()}


def with_torch(path, want):
    """The same of PyTorch."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(path)
    if set(tensors) != set(want):
        raise ValueError(f"{path}: safetensors.torch sees other tensors")
    return {
        name: (
            str(tensor.dtype).removeprefix("torch."),
            list(tensor.shape),
            tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
        for name, tensor in tensors.items()
    }


def compare(path, want, library, names, read, report):
    found = read(path, want)
    for name, tensor in want.items():
        if name not in found:
            report.skipped[library] += 1
            continue
        report.compared[library] += 1
        if found[name] != (names.get(tensor.dtype), tensor.shape, tensor.data):
            report.problems.append(f"{path}: {library} reads something else of {name}")


def check_file(path, report):
    want = stored_in(path)
    compare(path, want, "NumPy", NUMPY_NAMES, with_numpy, report)
    if importlib.util.find_spec("torch"):
        compare(path, want, "PyTorch", TORCH_NAMES, with_torch, report)
    else:
        report.skipped["PyTorch"] += len(want)
    report.bytes += sum(len(tensor.data) for tensor in want.values())
    return want


def check(folder, report):
    """Name -> Stored of all."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return check_file(folder / "model.safetensors", report)
    says = json.loads(index.read_text())
    found = {}
    for file in sorted(set(says["weight_map"].values())):
        for name, tensor in check_file(folder / file, report).items():
            if says["weight_map"].get(name) != file:
                report.problems.append(f"{file}: the index does not say that {name} is there")
            found[name] = tensor
    report.problems += [f"{name}: is in no file" for name in says["weight_map"] if name not in found]
    if says["metadata"]["total_size"] != report.bytes:
        report.problems.append(f"total_size is {says['metadata']['total_size']}, the files have {report.bytes}")
    return found


def check_saved(saved, found, report):
    names = {f"{name}.{tensor.dtype}": name for name, tensor in found.items()}
    files = {file.name for file in saved.iterdir()}
    report.problems += [f"{file}: was saved and is not there" for file in sorted(files - set(names))]
    report.problems += [f"{file}: was not saved" for file in sorted(set(names) - files)]
    for file in sorted(files & set(names)):
        report.compared["saved"] += 1
        if (saved / file).read_bytes() != found[names[file]].data:
            report.problems.append(f"{file}: other bytes than were saved")


def main():
    arguments = sys.argv[1:]
    if len(arguments) not in (1, 3) or (len(arguments) == 3 and arguments[1] != "--bytes"):
        print(__doc__, file=sys.stderr)
        return 2
    missing = [name for name in ("numpy", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"check_safetensors: not checked: no module named {' and '.join(missing)}")
        return 77
    report, found = Report(), {}
    try:
        found = check(pathlib.Path(arguments[0]), report)
        if len(arguments) == 3:
            check_saved(pathlib.Path(arguments[2]), found, report)
    except Exception as error:  # every error about a bad file is an answer
        report.problems.append(f"{type(error).__name__}: {error}")
    for problem in report.problems:
        print(f"check_safetensors: {problem}")
    counts = [f"{count} as {name}" for name, count in report.compared.items()]
    counts += [f"{count} skipped by {name}" for name, count in report.skipped.items()]
    print(f"{len(found)} tensors, {report.bytes} bytes: {', '.join(counts)}; {len(report.problems)} problems")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
