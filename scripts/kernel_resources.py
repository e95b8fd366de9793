#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA kernels and compares their registers, shared memory and spills with a table.

    scripts/kernel_resources.py COMPILE_COMMANDS [--table FILE] [--accept] [--list] [UNIT...]

scripts/check_kernels.sh calls it. COMPILE_COMMANDS is the compile_commands.json of a build with CUDA. A unit is
a source (tensor/cuda/copy.cu), or a part of one that takes long (.../attention_backward_mma.cu:2/4); --list
prints all of them, and without units all are compiled. Every kernel is compiled for sm_90 as the build would.

The table has a line per kernel: registers, static shared memory, stack and spills as ptxas -v reports them; the
threads of a block, from __launch_bounds__, or 256 (launch.cuh's default) without them; dynamic shared memory,
which only the launch knows, so that is written by hand; blocks, how many blocks an SM of an H100 holds at once.

A number that grew, a kernel that the table lacks, a line whose kernel is gone, and a spill without a reason in
the last column are failures. --accept writes the new numbers into the table instead, and keeps its dynamic shared
memory, and its reasons where there still is a spill. Exit status 0: nothing failed, 1: something did, 2: wrong use, 77: another nvcc than the
table's, whose numbers would be others, so nothing was checked.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = ["source", "kernel", "threads", "registers", "static", "dynamic", "stack", "spill_stores", "spill_loads",
           "blocks", "reason"]
GROWS = ["registers", "static", "stack", "spill_stores", "spill_loads"]
# Sources whose kernels take minutes are compiled in so many parts.
PARTS = {
    "tensor/cuda/attention/attention_backward_mma.cu": 4,
    "tensor/cuda/attention/attention_backward_rows.cu": 6,
    "tensor/cuda/attention/attention_forward_mma.cu": 2,
    "tensor/cuda/attention/attention_forward_rows.cu": 2,
}
DEFAULT_THREADS = 256


def blocks_of_sm(threads, registers, shared):
    """Blocks of an SM with 65,536 registers, 228 KiB of shared memory, 64 warps and 32 blocks. A warp gets registers
    in steps of 256, on one of four quarters of the SM; a block gets shared memory in steps of 128 bytes, and 1 KiB
    for the system."""
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // 256) * 256
    by_registers = (65536 // 4 // of_warp) * 4 // warps if registers else 32
    by_shared = 228 * 1024 // (-(-(shared + 1024) // 128) * 128)
    return min(32, 64 // warps, by_registers, by_shared)


def demangle(names):
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return out.splitlines()


def short_name(name):
    """A demangled kernel without the hash of its file, its parameters and our namespaces."""
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__[0-9a-f]+_\d+_\w+?_cu_[0-9a-f]+::", "", name)
    name = re.sub(r"^void ", "", name)
    while (shorter := re.sub(r"\([^()]*\)", "", name)) != name:
        name = shorter
    return re.sub(r" (?=>)", "", re.sub(r"\bapogee::(optim::|comm::)?(cuda::)?", "", name))


def unique(names):
    """The names; a second one that is equal gets #2, and so on."""
    seen = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name} #{seen[name]}"


def kernels_of_ptx(text):
    """{mangled name: (threads or None, whether it uses dynamic shared memory)} in the order of the file."""
    dynamic = re.findall(r"^\.extern \.shared .* (\S+)\[\];", text, re.M)
    kernels = {}
    for entry in re.split(r"^(?=(?:\.\w+ )*\.entry )", text, flags=re.M)[1:]:
        name = re.search(r"\.entry\s+(\S+?)\(", entry)[1]
        bounds = re.search(r"^\.maxntid (\d+)(?:, (\d+))?(?:, (\d+))?", entry, re.M)
        threads = None
        if bounds:
            threads = 1
            for each in bounds.groups(default="1"):
                threads *= int(each)
        kernels[name] = (threads, any(each in entry for each in dynamic))
    return kernels


def numbers_of_ptxas(text):
    """{mangled name: the numbers of GROWS} from the report of ptxas -v."""
    found = {}
    for section in text.split("Compiling entry function ")[1:]:
        name = re.match(r"'(\S+)'", section)[1]
        # Functions that were not inlined have properties of their own; the kernel's are the last ones.
        frame = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", section)[-1]
        static = re.search(r"Used \d+ registers.*?(\d+) bytes smem", section)
        found[name] = {"registers": int(re.search(r"Used (\d+) registers", section)[1]),
                       "static": int(static[1]) if static else 0, "stack": int(frame[0]),
                       "spill_stores": int(frame[1]), "spill_loads": int(frame[2])}
    return found


def rows_of(source, ptx, report):
    """The rows of the kernels that ptxas compiled."""
    kernels, numbers = kernels_of_ptx(ptx), numbers_of_ptxas(report)
    rows = []
    for mangled, name in zip(kernels, unique(map(short_name, demangle(kernels)))):
        if mangled in numbers:
            threads, dynamic = kernels[mangled]
            rows.append({"source": source, "kernel": name, "threads": threads or DEFAULT_THREADS,
                         "needs_dynamic": dynamic, **numbers[mangled]})
    return rows


def commands(path):
    """{source: the words of its nvcc command, without input, output and what is to be made}"""
    found = {}
    for entry in json.loads(path.read_text()):
        if not entry["file"].endswith(".cu"):
            continue
        words = iter(shlex.split(entry["command"]))
        kept = []
        for word in words:
            if word in ("-o", "-x"):
                next(words)
            elif word not in ("-c", entry["file"]) and not word.startswith("--generate-code"):
                kept.append(word)
        found[str(pathlib.Path(entry["file"]).resolve().relative_to(ROOT))] = kept
    return dict(sorted(found.items()))


def units_of(sources):
    for source in sources:
        parts = PARTS.get(source, 1)
        yield from [source] if parts == 1 else [f"{source}:{part}/{parts}" for part in range(1, parts + 1)]


def run(words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[:1] + ['...'] + words[-1:])} failed:\n{done.stdout}")
    return done.stdout


def compile_unit(unit, command):
    """The rows of a unit, and the names of all kernels of its source."""
    source, _, part = unit.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        ptx = os.path.join(folder, "kernels.ptx")
        run([*command, "-arch=sm_90", "-ptx", "-o", ptx, str(ROOT / source)])
        text = pathlib.Path(ptx).read_text()
        # ptxas gets what nvcc would pass on.
        words = [command[0], "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", os.path.join(folder, "kernels.cubin")]
        words += [word for word in command if word.startswith("--fmad")]
        names = list(kernels_of_ptx(text))
        every = set(unique(map(short_name, demangle(names))))
        if part:
            index, count = map(int, part.split("/"))
            names = names[index - 1::count]
            for name in names:
                words += ["-Xptxas", f"--entry={name}"]
        report = run([*words, ptx]) if names else ""
        rows = rows_of(source, text, report)
    if len(rows) != len(names):
        raise RuntimeError(f"{unit}: ptxas reported {len(rows)} of {len(names)} kernels")
    return rows, every


def read_table(path):
    """The version of nvcc, and {(source, kernel): row}."""
    lines = path.read_text().splitlines() if path.exists() else []
    if not lines:
        return None, {}
    rows = {}
    for number, line in enumerate(lines[2:], 3):
        words = line.split("\t")
        if len(words) != len(COLUMNS):
            raise RuntimeError(f"{path}:{number}: {len(words)} columns, not {len(COLUMNS)}")
        row = dict(zip(COLUMNS, words))
        row.update({column: int(row[column]) for column in COLUMNS[2:-1]})
        rows[row["source"], row["kernel"]] = row
    return lines[0].removeprefix("# "), rows


def write_table(path, version, rows):
    lines = [f"# {version}", "\t".join(COLUMNS)]
    lines += ["\t".join(str(row[column]) for column in COLUMNS) for _, row in sorted(rows.items())]
    path.write_text("\n".join(lines) + "\n")


def complete(row, old):
    """The row with the columns that a person writes, and the blocks that follow."""
    row["dynamic"] = old["dynamic"] if old else 0
    row["reason"] = old["reason"] if old and row["spill_stores"] + row["spill_loads"] > 0 else ""
    row["blocks"] = blocks_of_sm(row["threads"], row["registers"], row["static"] + row["dynamic"])
    return row


def problems_of(row, old):
    """What fails, and what is only worth a line."""
    where = f"{row['source']}: {row['kernel']}"
    problems, notes = [], []
    if row["needs_dynamic"] and row["dynamic"] == 0:
        problems.append(f"{where}: uses dynamic shared memory; write its bytes in the table's column \"dynamic\"")
    if row["spill_stores"] + row["spill_loads"] > 0 and not row["reason"]:
        problems.append(f"{where}: spills {row['spill_stores']} bytes of stores and {row['spill_loads']} of loads: mend "
                        "that, or write the reason in the table's last column")
    if old is None:
        return problems + [f"{where}: is not in the table"], notes
    for column in GROWS:
        if row[column] > old[column]:
            blocks = f" ({old['blocks']} -> {row['blocks']} blocks per SM)" if row["blocks"] != old["blocks"] else ""
            problems.append(f"{where}: {column} {old[column]} -> {row[column]}{blocks}")
        elif row[column] < old[column]:
            notes.append(f"{where}: {column} {old[column]} -> {row[column]}, less than in the table")
    if row["threads"] != old["threads"]:
        problems.append(f"{where}: threads of a block {old['threads']} -> {row['threads']}")
    elif row["blocks"] < old["blocks"] and not problems:
        problems.append(f"{where}: blocks per SM {old['blocks']} -> {row['blocks']}")
    return problems, notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compile_commands", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path, default=ROOT / "cmake/kernel_resources.tsv")
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("units", nargs="*")
    arguments = parser.parse_intermixed_args()
    command_of = commands(arguments.compile_commands)
    every = list(units_of(command_of))
    if arguments.list:
        print("\n".join(every))
        return 0
    units = arguments.units or every
    if unknown := [unit for unit in units if unit not in every and unit not in command_of]:
        print(f"kernel_resources: {', '.join(unknown)}: no such unit; --list prints all", file=sys.stderr)
        return 2
    if not command_of:
        print("kernel_resources: no .cu file in compile_commands.json; is it a build with CUDA?", file=sys.stderr)
        return 2

    nvcc = next(iter(command_of.values()))[0]
    version = "nvcc " + re.search(r"V[\d.]+", run([nvcc, "--version"]))[0]
    table_version, table = read_table(arguments.table)
    if table_version != version and not arguments.accept:
        print(f"kernel_resources: not checked: the table is of {table_version}, this is {version}")
        return 77

    # The longest first.
    units = sorted(units, key=lambda unit: -PARTS.get(unit.partition(":")[0], 1))
    problems, notes, checked, kernels_of = [], [], set(), {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda unit: compile_unit(unit, command_of[unit.partition(":")[0]]), units)
        for unit, (rows, names) in zip(units, results):
            kernels_of[unit.partition(":")[0]] = names
            print(f"{unit}: {len(rows)} kernels", flush=True)
            for row in rows:
                key = row["source"], row["kernel"]
                old = table.get(key)
                row = complete(row, old)
                bad, small = problems_of(row, old)
                problems, notes = problems + bad, notes + small
                checked.add(key)
                if arguments.accept:
                    table[key] = row
    renamed = [key for key in table if key[0] in kernels_of and key[1] not in kernels_of[key[0]]]
    problems += [f"{key[0]}: {key[1]}: is in the table, but no kernel any more" for key in renamed]
    uncompiled = [key for key in table if key[0] not in command_of]
    problems += [f"{key[0]}: {key[1]}: is in the table, but its source is not compiled" for key in uncompiled]

    for note in notes:
        print(f"kernel_resources: {note}")
    if arguments.accept:
        for key in renamed + uncompiled:
            del table[key]
        write_table(arguments.table, version, table)
        problems = [problem for problem in problems if "column" in problem]  # what a person must write
    for problem in problems:
        print(f"kernel_resources: {problem}")
    print(f"{len(checked)} kernels, {len(problems)} problems")
    if problems and not arguments.accept:
        print("kernel_resources: if these numbers are meant, accept them: scripts/check_kernels.sh --accept SOURCE...")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
