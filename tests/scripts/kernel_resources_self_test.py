#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/kernel_resources.py with an nvcc that prints what real ones do: planted growth and spills are found."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE_ROOT / "scripts"))
import kernel_resources  # noqa: E402

# Two kernels: one with launch bounds and dynamic shared memory, one with neither. The stub reads what ptxas is to
# report from a file beside the source.
FIRST = "_ZN6apogee4cuda46_GLOBAL__N__5b6be96f_13_activation_cu_5a0dd0a96DecideEx"
SECOND = "_ZN6apogee4cuda12_GLOBAL__N__13ForEachKernelIfEEvxT_"
PTX = f"""
.extern .shared .align 16 .b8 _ZN6apogee7dynamicE[];
.visible .entry {FIRST}(
.param .u64 a
)
.maxntid 32, 4, 1
{{
	mov.u64 	%rd1, _ZN6apogee7dynamicE;
}}
.visible .entry {SECOND}(
.param .u64 a
)
{{
	ret;
}}
"""
NVCC = """#!/bin/sh
here="$(dirname "$0")"
case " $* " in
  *" --version "*) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit ;;
  *" -ptx "*)
    for word; do [ "$last" = -o ] && cp "$here/kernels.ptx" "$word"; last="$word"; done
    exit ;;
esac
while read -r name registers static stack stores loads; do
  case " $* " in *" --entry=$name "*) ;; *--entry=*) continue ;; esac
  echo "ptxas info    : Compiling entry function '$name' for 'sm_90'"
  echo "ptxas info    : Function properties for $name"
  echo "    $stack bytes stack frame, $stores bytes spill stores, $loads bytes spill loads"
  [ "$static" = 0 ] && shared= || shared=", $static bytes smem"
  echo "ptxas info    : Used $registers registers, used 1 barriers$shared"
done <"$here/report"
"""

failures = 0


def check(what, holds):
    global failures
    if not holds:
        print(f"FAILED: {what}")
        failures += 1


class Repository:
    """A folder with a script, a source, a compiler and a table."""

    def __init__(self, folder):
        self.folder = folder
        self.table = folder / "cmake/kernel_resources.tsv"
        for name in ("scripts", "cmake", "tensor"):
            (folder / name).mkdir()
        shutil.copy(SOURCE_ROOT / "scripts/kernel_resources.py", folder / "scripts")
        self.nvcc = folder / "nvcc"
        self.nvcc.write_text(NVCC)
        self.nvcc.chmod(0o755)
        (folder / "kernels.ptx").write_text(PTX)
        (folder / "tensor/a.cu").write_text("")
        self.commands("a.cu")
        self.report()

    def commands(self, *names):
        entries = [{"directory": str(self.folder), "file": str(self.folder / "tensor" / name),
                    "command": f"{self.nvcc} -O3 --generate-code=arch=compute_90,code=[sm_90] --fmad=false -x cu -c "
                               f"{self.folder}/tensor/{name} -o {name}.o"} for name in names]
        (self.folder / "compile_commands.json").write_text(json.dumps(entries))

    def report(self, first="40 16 0 0 0", second="32 0 0 0 0"):
        (self.folder / "report").write_text(f"{FIRST} {first}\n{SECOND} {second}\n")

    def run(self, *words):
        done = subprocess.run([self.folder / "scripts/kernel_resources.py", self.folder / "compile_commands.json", *words],
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def edit(self, old, new):
        text = self.table.read_text()
        check(f"the table has {old!r}", old in text)
        self.table.write_text(text.replace(old, new))


def check_runs(repository):
    status, text = repository.run()
    check("without a table nothing is checked", status == 77)
    status, text = repository.run("--accept")
    check("a kernel's dynamic shared memory is asked for", status == 1 and "Decide: uses dynamic shared memory" in text)
    rows = repository.table.read_text()
    check("bounds are the threads", "tensor/a.cu\tDecide\t128\t40\t16\t0\t0\t0\t0\t12\t" in rows)
    check("256 without bounds", "tensor/a.cu\tForEachKernel<float>\t256\t32\t0\t0\t0\t0\t0\t8\t" in rows)
    repository.edit("\t40\t16\t0\t", "\t40\t16\t65536\t")
    check("which changes the blocks", repository.run("--accept")[0] == 0 and "\t65536\t0\t0\t0\t3\t" in
          repository.table.read_text())
    before = repository.table.read_text()
    check("an accepted table passes", repository.run()[0] == 0)

    repository.report(second="41 0 0 0 0")
    status, text = repository.run()
    check("registers that grew", status == 1 and
          "tensor/a.cu: ForEachKernel<float>: registers 32 -> 41 (8 -> 5 blocks per SM)" in text and "--accept" in text)
    repository.report(first="40 32 0 0 0")
    status, text = repository.run()
    check("shared memory that grew", status == 1 and "Decide: static 16 -> 32" in text)
    repository.report(second="24 0 0 0 0")
    status, text = repository.run()
    check("registers that shrank are no failure", status == 0 and "registers 32 -> 24, less than in the table" in text)
    check("a check does not write", repository.table.read_text() == before)

    repository.report(second="32 0 8 4 12")
    status, text = repository.run()
    check("a spill", status == 1 and "spills 4 bytes of stores and 12 of loads" in text and "stack 0 -> 8" in text)
    check("a spill is not accepted without a reason", repository.run("--accept")[0] == 1)
    repository.edit("\t8\t4\t12\t8\t", "\t8\t4\t12\t8\tf64 only")
    check("a spill with a reason", repository.run()[0] == 0)
    repository.report(second="32 0 8 8 12")
    status, text = repository.run()
    check("a spill that grew", status == 1 and "spill_stores 4 -> 8" in text)
    check("accepted with its reason", repository.run("--jobs", "1", "--accept", "tensor/a.cu")[0] == 0 and "f64 only" in repository.table.read_text())
    repository.report()
    check("without the spill again, and its reason", repository.run("--accept")[0] == 0 and
          "f64 only" not in repository.table.read_text())

    line = next(line for line in before.splitlines() if "ForEach" in line)
    repository.table.write_text(before.replace(line + "\n", ""))
    status, text = repository.run()
    check("a new kernel", status == 1 and "ForEachKernel<float>: is not in the table" in text)
    repository.table.write_text(before + line.replace("<float>", "<long>") + "\n")
    status, text = repository.run()
    check("a kernel that is gone", status == 1 and "ForEachKernel<long>: is in the table, but no kernel any more" in text)
    repository.table.write_text(before + line.replace("a.cu", "b.cu") + "\n")
    status, text = repository.run()
    check("a source that is gone", status == 1 and "tensor/b.cu: ForEachKernel<float>: is in the table, but its" in text)
    check("--accept removes both", repository.run("--accept")[0] == 0 and "b.cu" not in repository.table.read_text())

    repository.edit("V13.0.88", "V12.4.1")
    status, text = repository.run()
    check("another nvcc", status == 77 and "the table is of nvcc V12.4.1, this is nvcc V13.0.88" in text)
    check("no such source", repository.run("tensor/c.cu")[0] == 2)


def check_parts():
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(pathlib.Path(folder))
        script = repository.folder / "scripts/kernel_resources.py"
        script.write_text(script.read_text().replace("PARTS = {", 'PARTS = {\n    "tensor/a.cu": 2,'))
        check("parts are listed", repository.run("--list")[1].split() == ["tensor/a.cu:1/2", "tensor/a.cu:2/2"])
        repository.run("--accept")
        repository.edit("\t40\t16\t0\t", "\t40\t16\t64\t")
        check("parts are the whole", repository.run()[1].splitlines()[-1] == "2 kernels, 0 problems")
        repository.report(second="33 0 0 0 0")
        statuses = [repository.run(f"tensor/a.cu:{part}/2")[0] for part in (1, 2)]
        check("a part checks its kernels only", statuses == [0, 1])
        repository.report(second="32 0 0 0 0")
        last = repository.table.read_text().splitlines()[-1]
        repository.table.write_text(repository.table.read_text() + last.replace("float", "long") + "\n")
        check("a part finds a kernel that is gone", repository.run("tensor/a.cu:1/2")[0] == 1)


with tempfile.TemporaryDirectory() as name:
    check_runs(Repository(pathlib.Path(name)))
check_parts()
# As NVIDIA's cuda_occupancy.h has it for compute capability 9.0.
for (threads, registers, shared), blocks in {
        (256, 32, 0): 8, (256, 33, 0): 6, (256, 255, 0): 1, (128, 255, 0): 2, (32, 16, 0): 32, (1024, 64, 0): 1,
        (256, 32, 25640): 8, (256, 32, 32832): 6, (128, 168, 135936): 1, (96, 40, 0): 16, (320, 48, 100000): 2}.items():
    check(f"{blocks} blocks of {threads} threads, {registers} registers, {shared} bytes",
          kernel_resources.blocks_of_sm(threads, registers, shared) == blocks)
print(f"kernel_resources self test: {failures} failures")
sys.exit(failures > 0)
