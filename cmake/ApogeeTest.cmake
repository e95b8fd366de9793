# SPDX-License-Identifier: Apache-2.0
# One line registers a test program (GoogleTest, gtest's main):
#
#   apogee_test(NAME core_shape_test SRCS core/shape_test.cc LAYERS core)
#
# One ctest entry per program: listing the cases of each program costs more than running them. Options:
# TIMEOUT seconds (default 120), LIBS further libraries, LABELS for `ctest -L`, ARGS for the program, DEVICES: its
# contexts come from tests/support/test_context.h, so where the GPU is emulated it is run on that, too, as
# NAME_cuda (scripts/gpu_check.sh does so on a real one).

if(APOGEE_BUILD_TESTS)
  find_package(GTest CONFIG QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "APOGEE_BUILD_TESTS=ON: GoogleTest was not found; install libgtest-dev and "
                        "libgmock-dev, or configure with -DAPOGEE_BUILD_TESTS=OFF")
  endif()
endif()

# Tests spend their time in the libraries: compiling them well would take a third longer.
function(apogee_test_flags target)
  target_compile_options(${target} PRIVATE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>")
endfunction()

# Called once, by tests/CMakeLists.txt: the owner of the tests' precompiled headers.
function(apogee_test_setup)
  if(APOGEE_PCH)
    file(CONFIGURE OUTPUT apogee_test_pch.cc CONTENT "int main() {}\n")
    apogee_program(NAME apogee_test_pch SRCS ${CMAKE_CURRENT_BINARY_DIR}/apogee_test_pch.cc LAYERS core
                   LIBS GTest::gtest)
    apogee_test_flags(apogee_test_pch)
    apogee_precompile(apogee_test_pch FROM apogee_test_pch HEADERS ${APOGEE_PCH_HEADERS} <gtest/gtest.h>)
  endif()
endfunction()

function(apogee_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "DEVICES" "NAME;TIMEOUT" "SRCS;LAYERS;LIBS;LABELS;ARGS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SRCS)
    message(FATAL_ERROR "apogee_test(${arg_NAME}): expected NAME, SRCS, LAYERS, LIBS, LABELS, ARGS, TIMEOUT, "
                        "DEVICES")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  apogee_program(NAME ${arg_NAME} SRCS ${arg_SRCS} LAYERS ${arg_LAYERS}
                 LIBS ${arg_LIBS} GTest::gmock GTest::gtest_main)
  apogee_test_flags(${arg_NAME})
  apogee_precompile(${arg_NAME} FROM apogee_test_pch)
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} ${arg_ARGS})
  # Tests share the cores with each other: OpenMP threads that spin at barriers would take minutes.
  set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
                       ENVIRONMENT "OMP_WAIT_POLICY=passive")
  if(arg_DEVICES OR "cuda" IN_LIST arg_LABELS)
    set_property(GLOBAL APPEND PROPERTY APOGEE_CUDA_PROGRAMS ${arg_NAME})
  endif()
  if(arg_DEVICES AND APOGEE_WITH_CUDA STREQUAL "EMULATED")
    add_test(NAME ${arg_NAME}_cuda COMMAND ${arg_NAME} ${arg_ARGS})
    set_tests_properties(${arg_NAME}_cuda PROPERTIES TIMEOUT 600 LABELS cuda
                         ENVIRONMENT "OMP_WAIT_POLICY=passive;APOGEE_TEST_DEVICE=cuda")
  endif()
endfunction()

# A test that this build cannot run: it prints the line that scripts/run_ctest.sh counts as skipped.
function(apogee_skipped_test name label)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "[  SKIPPED ] ${name} (0 ms)")
  set_tests_properties(${name} PROPERTIES LABELS ${label})
endfunction()

# apogee_mpi_test(NAME comm_collectives_mpi_test SRCS comm/collectives_test.cc LAYERS comm): the same test
# again, its ranks now processes under mpirun, 4 or PROCESSES of them. Label `mpi`. Without MPI it is there
# and counts as skipped. RANKS_PER_MACHINE 2: each two count as a machine; MORE 6:2: the same program once
# more, comm_collectives_mpi_test_6_2, on 6 processes, each two of which count as a machine (MORE 6: machines
# are what they are). TCP 4 6:2: the same program also as comm_collectives_tcp_test and comm_collectives_tcp_test_6_2,
# under `apogee run`, in builds without MPI, too; label `tcp`.
function(apogee_mpi_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TIMEOUT;PROCESSES;RANKS_PER_MACHINE"
                        "SRCS;LAYERS;LIBS;ARGS;MORE;TCP")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SRCS)
    message(FATAL_ERROR "apogee_mpi_test(${arg_NAME}): expected NAME, SRCS, LAYERS, LIBS, ARGS, TIMEOUT, PROCESSES, "
                        "RANKS_PER_MACHINE, MORE, TCP")
  endif()
  if(NOT APOGEE_HAS_MPI)
    apogee_skipped_test(${arg_NAME} mpi)
    if(NOT arg_TCP)
      return()
    endif()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_PROCESSES)
    set(arg_PROCESSES 4)
  endif()
  apogee_program(NAME ${arg_NAME} SRCS ${arg_SRCS} ${CMAKE_CURRENT_SOURCE_DIR}/support/mpi_main.cc
                 LAYERS ${arg_LAYERS} LIBS ${arg_LIBS} GTest::gmock GTest::gtest)
  apogee_test_flags(${arg_NAME})
  apogee_precompile(${arg_NAME} FROM apogee_test_pch)
  set(mpirun ${CMAKE_CURRENT_SOURCE_DIR}/support/mpirun.sh ${MPIEXEC_EXECUTABLE})
  if(APOGEE_HAS_MPI)
    apogee_process_tests(mpi ${arg_NAME} "${mpirun}" "${arg_PROCESSES}:${arg_RANKS_PER_MACHINE};${arg_MORE}")
  endif()
  if(arg_TCP AND TARGET apogee_command)
    string(REPLACE "_mpi_test" "_tcp_test" tcp_name ${arg_NAME})
    apogee_process_tests(tcp ${tcp_name} "$<TARGET_FILE:apogee_command>;run;-n" "${arg_TCP}")
  endif()
endfunction()

# One ctest entry per size, the first as `name`. Of apogee_mpi_test, whose arguments it sees.
function(apogee_process_tests label name starter sizes)
  set(entry ${name})
  set(more ${sizes})
  list(POP_FRONT more)
  foreach(size ${sizes})
    string(REGEX MATCH "^([0-9]+):?([0-9]*)$" matched ${size})
    set(processes ${CMAKE_MATCH_1})
    set(environment "OMP_WAIT_POLICY=passive")
    if(CMAKE_MATCH_2)
      list(APPEND environment "APOGEE_RANKS_PER_MACHINE=${CMAKE_MATCH_2}")
    endif()
    add_test(NAME ${entry} COMMAND ${starter} ${processes} $<TARGET_FILE:${arg_NAME}> ${arg_ARGS})
    set_tests_properties(${entry} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS ${label}
                         ENVIRONMENT "${environment}")
    list(POP_FRONT more next)
    string(REPLACE ":" "_" suffix "${next}")
    set(entry ${name}_${suffix})
  endforeach()
endfunction()
