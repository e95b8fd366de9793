# SPDX-License-Identifier: Apache-2.0
"""A Conan 2 recipe for the checkout that it is part of.

    conan create packaging/conan --build=missing
"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

ROOT = os.path.join("..", "..")


class ApogeeConan(ConanFile):
    name = "apogee"
    description = "A C++20 library that boosts an ordinary training loop"
    license = "Apache-2.0"
    topics = ("deep-learning", "distributed-training", "zero", "mpi", "cuda")
    package_type = "library"
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False], "with_cuda": [True, False], "with_mpi": [True, False],
               "with_utf8proc": [True, False]}
    default_options = {"shared": False, "with_cuda": False, "with_mpi": False, "with_utf8proc": True}

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, ROOT, "CMakeLists.txt"))
        self.version = re.search(r"project\(apogee VERSION ([0-9.]+)", text).group(1)

    def export_sources(self):
        root = os.path.join(self.recipe_folder, ROOT)
        copy(self, "*", root, self.export_sources_folder, excludes=("build*", "out*", ".git*"))

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("apogee runs on Linux only")

    def requirements(self):
        # Public headers include Abseil's.
        self.requires("abseil/[>=20220623.0]", transitive_headers=True, transitive_libs=True)
        self.requires("eigen/[>=3.4.0 <4]")
        self.requires("libsodium/[>=1.0.18 <2]")
        if self.options.with_mpi:
            self.requires("openmpi/[>=4.1]")
        if self.options.with_utf8proc:
            self.requires("utf8proc/[>=2.5]")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        deps = CMakeDeps(self)
        # The names that cmake/Find*.cmake would give; Conan's own files take their place.
        deps.set_property("libsodium", "cmake_file_name", "Sodium")
        deps.set_property("libsodium", "cmake_target_name", "Sodium::sodium")
        deps.set_property("utf8proc", "cmake_file_name", "Utf8proc")
        deps.set_property("utf8proc", "cmake_target_name", "Utf8proc::utf8proc")
        deps.generate()
        toolchain = CMakeToolchain(self)
        for name, value in {
            "APOGEE_BUILD_TESTS": False,
            "APOGEE_BUILD_EXAMPLES": False,
            "APOGEE_BUILD_TOOLS": False,
            "APOGEE_UNITY": True,
            # The machine's own toolkit: Conan Center has none.
            "APOGEE_WITH_CUDA": "ON" if self.options.with_cuda else "OFF",
            "APOGEE_WITH_MPI": "ON" if self.options.with_mpi else "OFF",
            "APOGEE_WITH_UTF8PROC": "ON" if self.options.with_utf8proc else "OFF",
            # Not taken from Conan: they would be found on the machine, and missing on another one.
            "APOGEE_WITH_ONEDNN": "OFF",
            "APOGEE_WITH_SENTENCEPIECE": "OFF",
        }.items():
            toolchain.cache_variables[name] = value
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # The package's own CMake files know the layers, their order and what they link.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "apogee")]
