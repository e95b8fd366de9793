# SPDX-License-Identifier: Apache-2.0
# The layer check must fail on what it forbids: each case writes a small tree and runs the check on it.
#
#   cmake -DWORK=<scratch folder> -P tests/layering/self_test.cmake

cmake_minimum_required(VERSION 3.25)

set(layers "core|core|\ntensor|tensor|core\nnn|nn|tensor\nnn_parallel|nn/parallel|nn\nexamples|examples|nn\n")
set(failures)

# expect(<pass|fail> <what it shows> <file> <its one include line>)
function(expect outcome text file include)
  file(REMOVE_RECURSE ${WORK})
  file(WRITE ${WORK}/layers.txt "${layers}")
  file(WRITE ${WORK}/tree/core/core.h "#include <vector>\n")
  file(WRITE ${WORK}/tree/core/slow.h "#include \"absl/status/status.h\"\n")
  file(WRITE ${WORK}/tree/tensor/slow.h "#include \"apogee/core/slow.h\"\n")
  file(WRITE ${WORK}/tree/${file} "${include}\n")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -DROOT=${WORK}/tree -DLAYERS=${WORK}/layers.txt -P
            ${CMAKE_CURRENT_LIST_DIR}/layer_check.cmake
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
  if((outcome STREQUAL "pass" AND NOT code EQUAL 0) OR (outcome STREQUAL "fail" AND code EQUAL 0))
    set(failures ${failures} "${text}: expected to ${outcome}" PARENT_SCOPE)
  endif()
endfunction()

expect(pass "a declared dependency" tensor/a.h "#include \"apogee/core/core.h\"")
expect(pass "a dependency of a dependency" nn/a.cc "#include \"apogee/core/core.h\"")
expect(pass "a nested layer on its parent" nn/parallel/a.cc "#include \"apogee/nn/a.h\"")
expect(pass "Eigen in a CPU kernel" tensor/cpu/a.cc "#include <Eigen/Core>")
expect(pass "the umbrella header in a program" examples/a.cc "#include \"apogee/apogee.h\"")
expect(fail "a higher layer" core/a.cc "#include \"apogee/tensor/tensor.h\"")
expect(fail "a higher layer, spelled oddly" core/a.h "  #  include <apogee/tensor/tensor.h>")
expect(fail "a parent on its nested layer" nn/a.cc "#include \"apogee/nn/parallel/a.h\"")
expect(fail "an undeclared folder" nn/a.cc "#include \"apogee/optim/momentum/sgd.h\"")
expect(fail "the umbrella header in a layer" nn/a.cc "#include \"apogee/apogee.h\"")
expect(fail "a header without its prefix" core/a.cc "#include \"core.h\"")
expect(fail "Eigen in a header" tensor/cpu/a.h "#include <Eigen/Core>")
expect(fail "Eigen outside the kernels" nn/a.cc "#include <Eigen/Core>")
expect(fail "oneDNN in a header" tensor/a.h "#include \"oneapi/dnnl/dnnl.hpp\"")
expect(pass "oneDNN in its private header" tensor/cpu/onednn/primitives.h "#include <dnnl.hpp>")
expect(fail "that header in another one" tensor/cpu/a.h "#include \"apogee/tensor/cpu/onednn/primitives.h\"")
expect(fail "CUDA in a header" core/a.h "#include <cuda_runtime.h>")
expect(fail "NCCL in a header" core/a.h "#include <nccl.h>")
expect(fail "MPI in a header" core/a.h "#include <mpi.h>")
expect(pass "Abseil behind a header of a .cc file" tensor/a.cc "#include \"apogee/tensor/slow.h\"")
expect(pass "a light header in device code" tensor/cuda/a.cu "#include \"apogee/core/core.h\"")
expect(fail "Abseil in device code" tensor/cuda/a.cu "#include \"absl/status/status.h\"")
expect(fail "Abseil behind two headers of device code" tensor/cuda/a.cu "#include \"apogee/tensor/slow.h\"")
expect(fail "Abseil behind a header of a .cuh" tensor/cuda/a.cuh "#include \"apogee/core/slow.h\"")
expect(fail "Eigen in device code" tensor/cuda/a.cu "#include <Eigen/Core>")
expect(fail "CLI11 in device code" tensor/cuda/a.cu "#include <CLI/CLI.hpp>")
expect(fail "iostream in device code" tensor/cuda/a.cu "#include <iostream>")

expect(pass "the host's context in another backend" tensor/cuda/a.cc "#include \"apogee/tensor/cpu/cpu_context.h\"")
expect(fail "the CPU's header in another backend" tensor/cuda/a.cc "#include \"apogee/tensor/cpu/a.h\"")
expect(fail "another backend's header in the CPU's" tensor/cpu/a.cc "#include \"apogee/tensor/cuda/a.h\"")

file(REMOVE_RECURSE ${WORK})
if(failures)
  list(JOIN failures "\n  " text)
  message(FATAL_ERROR "layer check self test:\n  ${text}")
endif()
