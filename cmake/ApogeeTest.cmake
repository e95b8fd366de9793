# SPDX-License-Identifier: Apache-2.0
# One line registers a test source (GoogleTest):
#
#   apogee_test(NAME core_shape_test SRCS core/shape_test.cc LAYERS core)
#
# One ctest entry per source, because listing the cases of each costs more than running them. Options:
#
#   TIMEOUT  seconds (default 120); under a sanitizer four times as many
#   LIBS     further libraries
#   LABELS   for `ctest -L`
#   ARGS     for the program
#   DEVICES  The test makes its contexts with tests/support/test_context.h. A build with the emulated GPU runs it
#            on that GPU, too, as NAME_cuda; scripts/gpu_check.sh runs it on a real one.
#   PRODUCTS Its matrix products are to be right whatever cuBLASLt refuses: it runs once more on the emulated GPU, as
#            NAME_cuda_refused, with a cuBLASLt that refuses what the real one may.
#   ALONE    The test needs its own program, for example because of its own definitions.
#
# Without APOGEE_UNITY every source is a program with the name of the test. With it, six sources of a folder are
# one translation unit and one program, because reading headers and instantiating GoogleTest's templates costs
# more than the tests' own code. Each ctest entry then runs the cases of its source (--only-source). So every test
# source has its own namespace.

if(APOGEE_BUILD_TESTS)
  find_package(GTest CONFIG QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "APOGEE_BUILD_TESTS=ON: GoogleTest was not found; install libgtest-dev and "
                        "libgmock-dev, or configure with -DAPOGEE_BUILD_TESTS=OFF")
  endif()
endif()

# Tests spend their time in the libraries. Optimising the tests' own code would make a build a third longer.
function(apogee_test_flags target)
  target_compile_options(${target} PRIVATE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-Og>")
endfunction()

# Makes the target that owns the tests' precompiled headers, and the tests' main functions. Called once, by
# tests/CMakeLists.txt.
function(apogee_test_setup)
  file(CONFIGURE OUTPUT apogee_test_pch.cc CONTENT "int main() {}\n")
  set(gtest GTest::gmock GTest::gtest)
  if(BUILD_SHARED_LIBS)
    # GoogleTest comes as static libraries.
    file(CONFIGURE OUTPUT apogee_gtest.cc CONTENT "")
    add_library(apogee_gtest SHARED ${CMAKE_CURRENT_BINARY_DIR}/apogee_gtest.cc)
    target_link_libraries(apogee_gtest PRIVATE -Wl,--whole-archive ${gtest} -Wl,--no-whole-archive)
    target_include_directories(apogee_gtest SYSTEM INTERFACE
                               $<TARGET_PROPERTY:GTest::gtest,INTERFACE_INCLUDE_DIRECTORIES>)
    set(gtest apogee_gtest)
  endif()
  apogee_program(NAME apogee_test_pch SRCS ${CMAKE_CURRENT_BINARY_DIR}/apogee_test_pch.cc LAYERS core
                 LIBS ${gtest})
  apogee_test_flags(apogee_test_pch)
  apogee_precompile(apogee_test_pch FROM apogee_test_pch
                    HEADERS ${APOGEE_PCH_HEADERS} <gtest/gtest.h> <gmock/gmock-matchers.h>)
  # One for the layers below comm, and one for tests whose ranks may also be processes.
  foreach(kind main process_main)
    add_library(apogee_test_${kind} OBJECT support/${kind}.cc)
    apogee_target_flags(apogee_test_${kind})
    apogee_test_flags(apogee_test_${kind})
    target_include_directories(apogee_test_${kind} PRIVATE ${APOGEE_INCLUDE_ROOT})
    target_link_libraries(apogee_test_${kind} PUBLIC ${gtest})
  endforeach()
  target_link_libraries(apogee_test_process_main PUBLIC apogee_comm)
endfunction()

# Makes or extends the program of a test source. Sets `program` to it, and `only` to the flag that selects the
# source's cases. Only for apogee_test and apogee_mpi_test: it reads their arguments.
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
    if(folder MATCHES "^(comm|nn_parallel|chunk|checkpoint|plugins|pictures|booster)")
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

# Records the program of a ctest entry, for <build>/test_programs.txt. tools/mutate.sh reads there which programs
# to build.
function(apogee_note_test name program)
  set_property(GLOBAL APPEND PROPERTY APOGEE_TEST_PROGRAMS "${name} ${program}")
endfunction()

# Sets a time limit that is missing, and raises it under a sanitizer.
function(apogee_time_limit seconds)
  if(NOT ${seconds})
    set(${seconds} 120)
  endif()
  if(APOGEE_SANITIZE)
    math(EXPR ${seconds} "4 * ${${seconds}}")
  endif()
  set(${seconds} ${${seconds}} PARENT_SCOPE)
endfunction()

function(apogee_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "DEVICES;PRODUCTS;ALONE" "NAME;TIMEOUT" "SRCS;LAYERS;LIBS;LABELS;ARGS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SRCS)
    message(FATAL_ERROR "apogee_test(${arg_NAME}): expected NAME, SRCS, LAYERS, LIBS, LABELS, ARGS, TIMEOUT, "
                        "DEVICES, PRODUCTS, ALONE")
  endif()
  apogee_time_limit(arg_TIMEOUT)
  apogee_test_program(program only)
  add_test(NAME ${arg_NAME} COMMAND ${program} ${only} ${arg_ARGS})
  apogee_note_test(${arg_NAME} ${program})
  # Tests share the cores with each other: OpenMP threads that spin at barriers would take minutes.
  set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
                       ENVIRONMENT "OMP_WAIT_POLICY=passive")
  if(arg_DEVICES OR "cuda" IN_LIST arg_LABELS)
    set_property(GLOBAL APPEND PROPERTY APOGEE_CUDA_PROGRAMS ${program})
    list(JOIN arg_ARGS " " arguments)
    string(STRIP "${arg_NAME} ${program} ${only} ${arguments}" line)
    set_property(GLOBAL APPEND PROPERTY APOGEE_DEVICE_TESTS "${line}")
  endif()
  set(cuda_limit 600)
  if(APOGEE_EMULATED_RACES)  # to look for races takes ten times as long (scripts/check_races.sh)
    set(cuda_limit 1800)
  endif()
  if(arg_DEVICES AND APOGEE_WITH_CUDA STREQUAL "EMULATED")
    add_test(NAME ${arg_NAME}_cuda COMMAND ${program} ${only} ${arg_ARGS})
    apogee_note_test(${arg_NAME}_cuda ${program})
    set_tests_properties(${arg_NAME}_cuda PROPERTIES TIMEOUT ${cuda_limit} LABELS cuda
                         ENVIRONMENT "OMP_WAIT_POLICY=passive;APOGEE_TEST_DEVICE=cuda")
  endif()
  if(arg_PRODUCTS AND APOGEE_WITH_CUDA STREQUAL "EMULATED")
    set(refuses "APOGEE_EMULATED_CUBLASLT_REFUSES=bias,gelu,unaligned,ones")
    add_test(NAME ${arg_NAME}_cuda_refused COMMAND ${program} ${only} ${arg_ARGS})
    apogee_note_test(${arg_NAME}_cuda_refused ${program})
    set_tests_properties(${arg_NAME}_cuda_refused PROPERTIES TIMEOUT ${cuda_limit} LABELS cuda
                         ENVIRONMENT "OMP_WAIT_POLICY=passive;APOGEE_TEST_DEVICE=cuda;${refuses}")
  endif()
endfunction()

# Registers a test that this build cannot run. It prints the line that scripts/run_ctest.sh counts as skipped.
function(apogee_skipped_test name label)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "[  SKIPPED ] ${name} (0 ms)")
  set_tests_properties(${name} PROPERTIES LABELS ${label})
endfunction()

# Runs the program of a source that apogee_test registered again, with processes as ranks:
#
#   apogee_mpi_test(NAME comm_collectives_mpi_test SRCS comm/collectives_test.cc LAYERS comm)
#
# The processes run under mpirun. The entry has the label `mpi`; without MPI it counts as skipped. TIMEOUT, LIBS,
# ARGS and ALONE are as above. Further options:
#
#   PROCESSES 6          number of processes (default 4)
#   RANKS_PER_MACHINE 2  every two processes count as one machine
#   MORE 6:2             Adds an entry with 6 processes, of which every two count as one machine:
#                        comm_collectives_mpi_test_6_2. MORE 6: with the real machines.
#   TCP 4 6:2            Adds entries that run under `apogee run`, also in builds without MPI, with the label `tcp`:
#                        comm_collectives_tcp_test with 4 processes, comm_collectives_tcp_test_6_2.
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
  apogee_time_limit(arg_TIMEOUT)
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

# Adds one ctest entry per size; the first has the name `name`. Only for apogee_mpi_test: it reads its arguments.
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

# Runs a large part of the matrix, or the shard of it that APOGEE_TEST_SHARD names. Further arguments are options of
# `apogee matrix`:
#
#   apogee_matrix_test(matrix_lora --only "adamw/*/lora*")
function(apogee_matrix_test name)
  set(limit 600)
  apogee_time_limit(limit)
  add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/matrix/sharded.sh $<TARGET_FILE:apogee_command> matrix ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${limit} ENVIRONMENT "OMP_WAIT_POLICY=passive")
  apogee_note_test(${name} apogee_command)
endfunction()
