#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the vcpkg port and the Conan recipe against the build: versions, options, licence, syntax.

    python3 tests/packaging/check_recipes.py SOURCE_DIR [--conan CONAN]

vcpkg and Conan are not needed. With a Conan 2 program, also lets it read the recipe.
"""

import argparse
import ast
import json
import pathlib
import re
import subprocess
import sys

LISTED = {"name", "version-semver", "description", "license", "supports", "dependencies", "default-features",
          "features"}


def options_of(root):
    text = (root / "cmake/ApogeeOptions.cmake").read_text()
    return set(re.findall(r"(?:option|apogee_tristate)\((\w+)", text))


def check_port(root, version, options, problems):
    port = json.loads((root / "packaging/vcpkg/apogee/vcpkg.json").read_text())
    if unknown := set(port) - LISTED:
        problems.append(f"vcpkg.json: fields {sorted(unknown)} are unknown")
    if port["version-semver"] != version:
        problems.append(f"vcpkg.json: version {port['version-semver']}, CMakeLists.txt has {version}")
    for name in port["default-features"]:
        if name not in port["features"]:
            problems.append(f"vcpkg.json: the default feature {name} is no feature")
    recipe = (root / "packaging/vcpkg/apogee/portfile.cmake").read_text()
    listed = re.search(r"IN ITEMS ([^)]*)\)", recipe).group(1).split()
    for name in listed:
        if f"APOGEE_WITH_{name.upper()}" not in options:
            problems.append(f"portfile.cmake: APOGEE_WITH_{name.upper()} is no option")
    if missing := set(port["features"]) - set(listed) - {"tools"}:
        problems.append(f"portfile.cmake: features {sorted(missing)} change no option")
    return recipe


def check_recipe(root, options, problems, conan):
    path = root / "packaging/conan/conanfile.py"
    text = path.read_text()
    tree = ast.parse(text, str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key in node.keys:
                name = key.value if isinstance(key, ast.Constant) else ""
                if str(name).startswith("APOGEE_") and name not in options:
                    problems.append(f"conanfile.py: {name} is no option")
    if not re.search(r"VERSION \(\[0-9\.\]\+\)", text):
        problems.append("conanfile.py: the version does not come from CMakeLists.txt")
    if conan:
        done = subprocess.run([conan, "inspect", str(path)], capture_output=True, text=True)
        if done.returncode != 0:
            problems.append(f"conan inspect: {done.stderr.strip()}")
    return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--conan")
    args = parser.parse_args()
    root, problems = args.source, []
    version = re.search(r"project\(apogee VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text()).group(1)
    options = options_of(root)
    texts = {"portfile.cmake": check_port(root, version, options, problems),
             "conanfile.py": check_recipe(root, options, problems, args.conan)}
    for file, text in texts.items():
        for name in re.findall(r"\bAPOGEE_[A-Z0-9_]*[A-Z0-9]\b(?!_)", text):
            if name not in options:
                problems.append(f"{file}: {name} is no option")
    for problem in problems:
        print(f"recipes: {problem}")
    if problems:
        sys.exit(1)
    print(f"recipes: version {version}, {len(options)} options known")


if __name__ == "__main__":
    main()
