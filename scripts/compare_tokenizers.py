#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Apogee's tokenizers with Hugging Face's library: ids and speed on one thread.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python scripts/compare_tokenizers.py build/native/bench/tokenizer_bench FILE.json...

The text is mixed: licences and documents of the system, sources, headers, programs, and the King
James Bible if it is installed. It is cut into blocks of 64 KiB, without regard to characters, so
that blocks begin and end with bytes that are no UTF-8. Both encode block after block on one thread,
in turns. Prints a line per tokenizer: the number of blocks whose ids differ, both medians, and their
ratio. --train N also trains byte-level BPE of N tokens on the text, with the library, and compares
it. With --random the text is of random characters instead: a third are marks, a seventh decompose,
a third are ASCII. With --or-skip, does nothing where Python lacks the library. Exit status: 0 if no ids differ.
"""
import argparse
import array
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    import tokenizers
except ImportError:
    if "--or-skip" not in sys.argv:
        raise
    print("[  SKIPPED ] compare_tokenizers: Python has no tokenizers (0 ms)")
    sys.exit(0)

# Folders, and the share of the text that each gives at most.
SOURCES = [("/usr/share/common-licenses", 0.1), ("/usr/share/doc", 0.25),
           (os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."), 0.15),
           ("/usr/include", 0.3), ("/usr/bin", 0.4)]
BLOCK = 64 << 10


def files_below(folder):
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "build")
        for name in sorted(names):
            path = os.path.join(directory, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def mixed_text(num_bytes):
    parts = []
    try:
        parts.append(subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True).stdout)
    except OSError:
        pass
    for folder, share in SOURCES:
        left = int(share * num_bytes)
        for path in files_below(folder):
            try:
                with open(path, "rb") as file:
                    data = file.read(left)
            except OSError:
                continue
            parts.append(data)
            left -= len(data)
            if left <= 0:
                break
    return b"".join(parts)[:num_bytes]


def random_text(num_bytes):
    valid = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    marks = [c for c in valid if unicodedata.category(c)[0] == "M"]
    composed = [c for c in valid if unicodedata.decomposition(c)]
    ascii_text = [c for c in valid if " " <= c <= "~"] + list("\n\r\t")
    generator = random.Random(5)
    # At least one byte per character.
    kinds = generator.choices([marks, composed, ascii_text, valid], [35, 15, 35, 15], k=num_bytes)
    return "".join(map(generator.choice, kinds)).encode()[:num_bytes]


def train(text, size, path):
    model = tokenizers.ByteLevelBPETokenizer()
    lines = text.decode("utf-8", "replace").splitlines()
    model.train_from_iterator(lines, vocab_size=size, show_progress=False,
                              special_tokens=["<|endoftext|>"])
    model.save(path)


def read_ids(path):
    values = array.array("i")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    blocks, at = [], 0
    while at < len(values):
        count = values[at]
        blocks.append(values[at + 1:at + 1 + count])
        at += 1 + count
    return blocks


def compare(bench, path, blocks, text_path, repeat):
    library = tokenizers.Tokenizer.from_file(path)
    library.encode(blocks[0], add_special_tokens=False)
    own_seconds, library_seconds, different = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        ids_path = os.path.join(folder, "ids")
        for turn in range(repeat):
            printed = subprocess.run(
                [bench, path, text_path, "--repeat", "1", "--block", str(BLOCK), "--ids", ids_path],
                check=True, capture_output=True, text=True).stdout
            own_seconds.append(float(re.search(r"seconds ([0-9.]+)", printed).group(1)))
            total, results = 0.0, []
            for block in blocks:
                begin = time.perf_counter()
                encoding = library.encode(block, add_special_tokens=False)
                total += time.perf_counter() - begin
                if turn == 0:
                    results.append(array.array("i", encoding.ids))
            library_seconds.append(total)
            if turn == 0:
                own = read_ids(ids_path)
                different = sum(a != b for a, b in zip(own, results)) + abs(len(own) - len(results))
    num_bytes = os.path.getsize(text_path)
    rate = lambda seconds: num_bytes / statistics.median(seconds) / 1e6
    print(f"{path}: {library.get_vocab_size()} tokens, {num_bytes:,} bytes, {different} of "
          f"{len(blocks)} blocks differ; Apogee {rate(own_seconds):.1f} MB/s, tokenizers "
          f"{tokenizers.__version__} {rate(library_seconds):.1f} MB/s, ratio "
          f"{rate(own_seconds) / rate(library_seconds):.1f}", flush=True)
    return different == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="the program tokenizer_bench")
    parser.add_argument("tokenizer", nargs="*", help="files tokenizer.json")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--train", type=int, default=0, metavar="N")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--or-skip", action="store_true")
    args = parser.parse_intermixed_args()
    text = (random_text if args.random else mixed_text)(args.megabytes * 1000 * 1000)
    blocks = [text[i:i + BLOCK].decode("utf-8", "replace") for i in range(0, len(text), BLOCK)]
    same = True
    with tempfile.TemporaryDirectory() as folder:
        text_path = os.path.join(folder, "text")
        with open(text_path, "wb") as file:
            file.write(text)
        paths = list(args.tokenizer)
        if args.train:
            paths.append(os.path.join(folder, f"trained_{args.train}.json"))
            train(text[:20_000_000], args.train, paths[-1])
        for path in paths:
            same = compare(args.bench, path, blocks, text_path, args.repeat) and same
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
