#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The public headers: what each layer's CMakeLists.txt names in HDRS.

    headers.py [ROOT]           prints their paths
    headers.py ROOT WORK        copies them to WORK/include/apogee/, for Doxygen
"""
import pathlib
import re
import shutil
import sys


def public_headers(root):
    """Paths below `root`, sorted."""
    found = []
    for list_file in sorted(root.glob("*/CMakeLists.txt")) + sorted(root.glob("*/*/CMakeLists.txt")):
        text = re.sub(r"#.*", "", list_file.read_text())
        for call in re.findall(r"\badd_layer\(([^()]*)\)", text):
            words = call.split()
            if "HDRS" not in words:
                continue
            for word in words[words.index("HDRS") + 1:]:
                if re.fullmatch(r"[A-Z_]+", word):  # the next keyword
                    break
                found.append((list_file.parent / word).relative_to(root).as_posix())
    return sorted(found)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    headers = public_headers(root)
    if len(sys.argv) < 3:
        print("\n".join(headers))
        return
    target = pathlib.Path(sys.argv[2]) / "include"
    shutil.rmtree(target, ignore_errors=True)
    for header in headers:
        copy = target / "apogee" / ("apogee.h" if header == "driver/apogee.h" else header)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / header, copy)


if __name__ == "__main__":
    main()
