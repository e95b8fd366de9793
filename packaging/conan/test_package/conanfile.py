# SPDX-License-Identifier: Apache-2.0
"""`conan create` builds the project tests/consumer/hello with the package, and runs it."""

import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout

ROOT = os.path.join("..", "..", "..")


class ApogeeTest(ConanFile):
    settings = "os", "compiler", "build_type", "arch"
    generators = "CMakeDeps"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        # In the tree's build folder, which neither git nor the recipe's sources contain.
        cmake_layout(self, build_folder=os.path.join(ROOT, "build", "conan_test"))

    def generate(self):
        CMakeToolchain(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder=os.path.join(ROOT, "tests", "consumer", "hello"))
        cmake.build()

    def test(self):
        if can_run(self):
            self.run(os.path.join(self.cpp.build.bindir, "consumer_hello"), env="conanrun")
