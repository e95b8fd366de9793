# SPDX-License-Identifier: Apache-2.0
# One line registers a test source (GoogleTest):
#
#   apogee_test(NAME core_shape_test SRCS core/shape_test.cc LAYERS core)
#
# One ctest entry per source: listing the cases of each costs more than running them. Options:
# TIMEOUT seconds (default 120), LIBS further libraries, LABELS for `ctest -L`, ARGS for the program, DEVICES: its
# contexts come from tests/support/test_context.h, so where the GPU is emulated it is run on that, too, as
# NAME_cuda (scripts/gpu_check.sh does so on a real one). ALONE: needs a program of its own (its own definitions).
#
# Without APOGEE_UNITY every source is a program, named as the test. With it, six sources of a folder are one
# translation unit and one program, and each ctest entry runs the cases of its source (--only-source): reading
# headers and instantiating GoogleTest's templates costs more than the tests' own code. So every test source has
# a namespace of its own.

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

# Called once, by tests/CMakeLists.txt: the owner of the tests' precompiled headers, and their main functions.
function(apogee_test_setup)
  file(CONFIGURE OUTPUT apogee_test_pch.cc CONTENT "int main() {}\n")
  apogee_program(NAME apogee_test_pch SRCS ${CMAKE_CURRENT_BINARY_DIR}/apogee_test_pch.cc LAYERS core
                 LIBS GTest::gtest GTest::gmock)
  apogee_test_flags(apogee_test_pch)
  apogee_precompile(apogee_test_pch FROM apogee_test_pch
                    HEADERS ${APOGEE_PCH_HEADERS} <gtest/gtest.h> <gmock/gmock-matchers.h>)
  # One for the layers below comm, and one for tests whose ranks may also be processes.
  foreach(kind main process_main)
    add_library(apogee_test_${kind} OBJECT support/${kind}.cc)
    apogee_target_flags(apogee_test_${kind})
    apogee_test_flags(apogee_test_${kind})
    target_include_directories(apogee_test_${kind} PRIVATE ${APOGEE_INCLUDE_ROOT})
    target_link_libraries(apogee_test_${kind} PUBLIC GTest::gmock GTest::gtest)
  endforeach()
  target_link_libraries(apogee_test_process_main PUBLIC apogee_comm)
endfunction()

# Sets `program` to the program of a test source, which it makes or extends, and `only` to the flag that selects
# the source's cases in it. Of apogee_test and apogee_mpi_test, whose arguments it sees.
function(apogee_test_program program only)
  list(GET arg_SRCS 0 source)
  get_property(known GLOBAL PROPERTY APOGEE_TEST_PROGRAM_OF_${source})
  if(known AND NOT arg_ALONE)
    set(${program} ${known} PARENT_SCOPE)
    get_property(flag GLOBAL PROPERTY APOGEE_TEST_ONLY_OF_${source})
    set(${only} "${flag}" PARENT_SCOPE)
    return()
  endif()
  list(LENGTH arg_SRCS num_sources)
  get_filename_component(folder ${source} DIRECTORY)
  set(name ${arg_NAME})
  set(flag)
  if(APOGEE_UNITY AND num_sources EQUAL 1 AND NOT arg_ALONE)
    string(MAKE_C_IDENTIFIER "${folder} ${arg_LIBS}" key)
    get_property(count GLOBAL PROPERTY APOGEE_TEST_COUNT_${key})
    math(EXPR next "${count} + 1")
    set_property(GLOBAL PROPERTY APOGEE_TEST_COUNT_${key} ${next})
    math(EXPR number "(${next} - 1) / 6 + 1")
    string(REGEX REPLACE "apogee_|nlohmann_json__nlohmann_|_+$" "" name "${key}")
    set(name ${name}_tests_${number})
    set(flag "--only-source=${source}")
  endif()
  if(TARGET ${name})
    target_sources(${name} PRIVATE ${arg_SRCS})
    list(TRANSFORM arg_LAYERS PREPEND apogee_)
    target_link_libraries(${name} PRIVATE ${arg_LAYERS})
  else()
    apogee_program(NAME ${name} SRCS ${arg_SRCS} LAYERS ${arg_LAYERS} LIBS ${arg_LIBS})
    set(main main)
    if(folder MATCHES "^(comm|nn_parallel|chunk|checkpoint|plugins|booster)")
      set(main process_main)
    endif()
    target_link_libraries(${name} PRIVATE apogee_test_${main})
    set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
    apogee_test_flags(${name})
    apogee_precompile(${name} FROM apogee_test_pch)
  endif()
  set_property(GLOBAL PROPERTY APOGEE_TEST_PROGRAM_OF_${source} ${name})
  set_property(GLOBAL PROPERTY APOGEE_TEST_ONLY_OF_${source} "${flag}")
  set(${program} ${name} PARENT_SCOPE)
  set(${only} "${flag}" PARENT_SCOPE)
endfunction()

# Notes the program of a ctest entry, for <build>/test_programs.txt (tools/mutate.sh builds what it runs).
function(apogee_note_test name program)
  set_property(GLOBAL APPEND PROPERTY APOGEE_TEST_PROGRAMS "${name} ${program}")
endfunction()

function(apogee_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "DEVICES;ALONE" "NAME;TIMEOUT" "SRCS;LAYERS;LIBS;LABELS;ARGS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SRCS)
    message(FATAL_ERROR "apogee_test(${arg_NAME}): expected NAME, SRCS, LAYERS, LIBS, LABELS, ARGS, TIMEOUT, "
                        "DEVICES, ALONE")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  apogee_test_program(program only)
  add_test(NAME ${arg_NAME} COMMAND ${program} ${only} ${arg_ARGS})
  apogee_note_test(${arg_NAME} ${program})
  # Tests share the cores with each other: OpenMP threads that spin at barriers would take minutes.
  set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
                       ENVIRONMENT "OMP_WAIT_POLICY=passive")
  if(arg_DEVICES OR "cuda" IN_LIST arg_LABELS)
    set_property(GLOBAL APPEND PROPERTY APOGEE_CUDA_PROGRAMS ${program})
  endif()
  if(arg_DEVICES AND APOGEE_WITH_CUDA STREQUAL "EMULATED")
    add_test(NAME ${arg_NAME}_cuda COMMAND ${program} ${only} ${arg_ARGS})
    apogee_note_test(${arg_NAME}_cuda ${program})
    set_tests_properties(${arg_NAME}_cuda PROPERTIES TIMEOUT 600 LABELS cuda
                         ENVIRONMENT "OMP_WAIT_POLICY=passive;APOGEE_TEST_DEVICE=cuda")
  endif()
endfunction()

# A test that this build cannot run: it prints the line that scripts/run_ctest.sh counts as skipped.
function(apogee_skipped_test name label)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "[  SKIPPED ] ${name} (0 ms)")
  set_tests_properties(${name} PROPERTIES LABELS ${label})
endfunction()

# apogee_mpi_test(NAME comm_collectives_mpi_test SRCS comm/collectives_test.cc LAYERS comm): the program of the
# source that apogee_test registered, run again, its ranks now processes under mpirun, 4 or PROCESSES of them.
# Label `mpi`. Without MPI the entry is there and counts as skipped. RANKS_PER_MACHINE 2: each two count as a machine; MORE 6:2: the same program once
# more, comm_collectives_mpi_test_6_2, on 6 processes, each two of which count as a machine (MORE 6: machines
# are what they are). TCP 4 6:2: the same program also as comm_collectives_tcp_test and comm_collectives_tcp_test_6_2,
# under `apogee run`, in builds without MPI, too; label `tcp`.
function(apogee_mpi_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "ALONE" "NAME;TIMEOUT;PROCESSES;RANKS_PER_MACHINE"
                        "SRCS;LAYERS;LIBS;ARGS;MORE;TCP")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SRCS)
    message(FATAL_ERROR "apogee_mpi_test(${arg_NAME}): expected NAME, SRCS, LAYERS, LIBS, ARGS, TIMEOUT, PROCESSES, "
                        "RANKS_PER_MACHINE, MORE, TCP, ALONE")
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
  apogee_test_program(program only)
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
    add_test(NAME ${entry} COMMAND ${starter} ${processes} $<TARGET_FILE:${program}> ${only} ${arg_ARGS})
    apogee_note_test(${entry} ${program})
    set_tests_properties(${entry} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS ${label}
                         ENVIRONMENT "${environment}")
    list(POP_FRONT more next)
    string(REPLACE ":" "_" suffix "${next}")
    set(entry ${name}_${suffix})
  endforeach()
endfunction()
