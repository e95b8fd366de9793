#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares core/float8.h with the ml_dtypes package: every code's value, and how numbers are rounded.

    scripts/check_float8.py [--every-float]

Rounded are all bf16 and fp16 values, and of f32 every code's value, every middle between two codes, and the
numbers next to both; the same as f64. --every-float adds the other f32 values, all 2^32 of them (minutes). The
package's cast does not saturate; the saturating one is compared with it after clamping, as torchao casts. Other
f64 values cannot be compared, because the package rounds them to f32 first, so some of them twice. A program of
a few lines is compiled with $CXX (g++). Prints a line per comparison and last how many values differ; exit
status 0: none, 1: some, 77: `ml_dtypes` or `numpy` is not installed, so nothing was checked.
"""
import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Reads numbers of a type from standard input, and writes a byte for each; or writes every code's value.
PROGRAM = """
#include <cstdio>
#include <cstring>
#include "apogee/core/float8.h"
template <typename Float8, typename Source>
int Round(apogee::Float8Overflow overflow) {
  static Source values[1 << 16];
  static Float8 codes[1 << 16];
  while (const size_t n = fread(values, sizeof(Source), 1 << 16, stdin)) {
    for (size_t i = 0; i < n; ++i) codes[i] = Float8(values[i], overflow);
    fwrite(codes, 1, n, stdout);
  }
  return 0;
}
template <typename Float8>
int Run(const char* source, const char* overflow) {
  if (!strcmp(source, "codes")) {
    for (int bits = 0; bits < 256; ++bits) {
      const float value(Float8::FromBits(bits));
      fwrite(&value, 4, 1, stdout);
    }
    return 0;
  }
  const auto policy = !strcmp(overflow, "saturate") ? apogee::Float8Overflow::kSaturate
                                                    : apogee::Float8Overflow::kNonFinite;
  return !strcmp(source, "f32") ? Round<Float8, float>(policy) : Round<Float8, double>(policy);
}
int main(int, char** words) {
  return !strcmp(words[1], "e4m3") ? Run<apogee::Float8E4M3>(words[2], words[3])
                                   : Run<apogee::Float8E5M2>(words[2], words[3]);
}
"""


def compile_program(work):
    (work / "apogee").symlink_to(ROOT)
    source, program = work / "float8.cc", work / "float8"
    source.write_text(PROGRAM)
    subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-I", work, source, "-o", program], check=True)
    return program


def neighbours(values, dtype):
    """The values, and the next ones of the dtype on both sides, with both signs."""
    import numpy

    values = values.astype(dtype)
    near = [values, numpy.nextafter(values, dtype(-1)), numpy.nextafter(values, dtype(numpy.inf))]
    return numpy.concatenate(near + [-each for each in near])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every-float", action="store_true")
    arguments = parser.parse_args()
    missing = [name for name in ("ml_dtypes", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"check_float8: not checked: no module named {' and '.join(missing)}")
        return 77
    import ml_dtypes
    import numpy

    numpy.seterr(all="ignore")
    differing = 0
    with tempfile.TemporaryDirectory() as name:
        program = compile_program(pathlib.Path(name))

        def ours(data, *words):
            return subprocess.run([program, *words], input=data, stdout=subprocess.PIPE, check=True).stdout

        def compare(label, ours, theirs, inputs):
            """Arrays of float8. NaN equals every NaN of its sign: the package chooses other codes."""
            nonlocal differing
            nan = numpy.isnan(ours) & numpy.isnan(theirs) & (numpy.signbit(ours) == numpy.signbit(theirs))
            wrong = (ours.view(numpy.uint8) != theirs.view(numpy.uint8)) & ~nan
            for i in numpy.flatnonzero(wrong)[:3]:
                print(f"check_float8: {label}: {inputs[i]!r}: {ours[i]!r} here, {theirs[i]!r} of ml_dtypes")
            differing += int(wrong.sum())
            return wrong.size

        for short, dtype in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
            codes = numpy.arange(256, dtype=numpy.uint8).view(dtype)
            values = codes.astype(numpy.float32)
            decoded = numpy.frombuffer(ours(b"", short, "codes"), numpy.float32)
            same = (decoded == values) & (numpy.signbit(decoded) == numpy.signbit(values))
            same |= numpy.isnan(decoded) & numpy.isnan(values)
            differing += int((~same).sum())
            print(f"{short}: values of 256 codes, {int((~same).sum())} differ")

            largest = float(ml_dtypes.finfo(dtype).max)
            finite = numpy.unique(numpy.abs(values[numpy.isfinite(values)])).astype(numpy.float64)
            finite = numpy.append(finite, 2 * finite[-1] - finite[-2])  # the number that would be next
            points = numpy.append(numpy.concatenate([finite, (finite[1:] + finite[:-1]) / 2]), [1e30, numpy.inf, numpy.nan])
            every_16 = numpy.arange(65536, dtype=numpy.uint16)
            inputs = {
                "bf16": (every_16.view(ml_dtypes.bfloat16), "f32", numpy.float32),
                "f16": (every_16.view(numpy.float16), "f32", numpy.float32),
                "f32": (neighbours(points, numpy.float32), "f32", numpy.float32),
                "f64": (neighbours(points, numpy.float32).astype(numpy.float64), "f64", numpy.float64),
            }
            for source, (numbers, word, wide) in inputs.items():
                exact = numbers.astype(wide)
                for policy in ("saturate", "nonfinite"):
                    expected = numpy.clip(exact, -largest, largest).astype(numbers.dtype) if policy == "saturate" else numbers
                    here = numpy.frombuffer(ours(exact.tobytes(), short, word, policy), numpy.uint8).view(dtype)
                    before = differing
                    count = compare(f"{short}, {source}, {policy}", here, expected.astype(dtype), numbers)
                    print(f"{short}: {count} numbers of {source}, {policy}: {differing - before} differ")
            if arguments.every_float:
                before = differing
                for first in range(0, 2**32, 2**24):
                    numbers = numpy.arange(first, first + 2**24, dtype=numpy.uint32).view(numpy.float32)
                    here = numpy.frombuffer(ours(numbers.tobytes(), short, "f32", "nonfinite"), numpy.uint8).view(dtype)
                    compare(f"{short}, every float", here, numbers.astype(dtype), numbers)
                print(f"{short}: all 4294967296 numbers of f32, nonfinite: {differing - before} differ")
    print(f"{differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
