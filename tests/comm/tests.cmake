# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME comm_trace_test SRCS comm/trace_test.cc LAYERS comm LIBS nlohmann_json::nlohmann_json
            LABELS threads)
apogee_test(NAME comm_flight_record_test SRCS comm/flight_record_test.cc LAYERS comm
            LIBS nlohmann_json::nlohmann_json LABELS threads)

apogee_test(NAME comm_compressed_all_reduce_test SRCS comm/compressed_all_reduce_test.cc LAYERS comm
            LABELS threads DEVICES)
# A stub NCCL, also as an old version and without one of its functions; loaded by path.
if(APOGEE_HAS_NCCL)
  foreach(stub nccl nccl_old nccl_partial)
    add_library(stub_${stub} MODULE comm/nccl/stub_nccl.cc)
    apogee_target_flags(stub_${stub})
    target_include_directories(stub_${stub} PRIVATE ${APOGEE_INCLUDE_ROOT})
  endforeach()
  target_compile_definitions(stub_nccl_old PRIVATE STUB_VERSION=2803)
  target_compile_definitions(stub_nccl_partial PRIVATE STUB_WITHOUT_ABORT)
  apogee_test(ALONE NAME comm_nccl_test SRCS comm/nccl/nccl_test.cc LAYERS comm LABELS threads)
  apogee_test(ALONE NAME comm_nccl_steps_test SRCS comm/nccl/nccl_steps_test.cc LAYERS comm LABELS threads)
  foreach(subject nccl_faults nccl_faults_death)
    apogee_test(ALONE NAME comm_${subject}_test SRCS comm/nccl/${subject}_test.cc LAYERS comm LABELS threads
                LIBS nlohmann_json::nlohmann_json)
  endforeach()
  foreach(test comm_nccl_test comm_nccl_steps_test comm_nccl_faults_test comm_nccl_faults_death_test)
    target_compile_definitions(${test} PRIVATE APOGEE_STUB_NCCL="$<TARGET_FILE:stub_nccl>"
                               APOGEE_STUB_NCCL_OLD="$<TARGET_FILE:stub_nccl_old>"
                               APOGEE_STUB_NCCL_PARTIAL="$<TARGET_FILE:stub_nccl_partial>")
    add_dependencies(${test} stub_nccl stub_nccl_old stub_nccl_partial)
  endforeach()
else()
  apogee_skipped_test(comm_nccl_test threads)
  apogee_skipped_test(comm_nccl_steps_test threads)
  apogee_skipped_test(comm_nccl_faults_test threads)
  apogee_skipped_test(comm_nccl_faults_death_test threads)
endif()
# An NCCL between processes with emulated GPUs, in a folder of its own: nothing else finds it there.
if(APOGEE_HAS_NCCL AND APOGEE_HAS_MPI AND APOGEE_WITH_CUDA STREQUAL "EMULATED")
  set(stub_nccl_folder ${CMAKE_CURRENT_BINARY_DIR}/stub_nccl)
  add_library(process_stub_nccl MODULE comm/nccl/process_stub_nccl.cc)
  target_link_libraries(process_stub_nccl PRIVATE apogee_cuda_emulation)
  # One that is too old, too.
  add_library(process_stub_nccl_old MODULE comm/nccl/stub_nccl.cc)
  target_compile_definitions(process_stub_nccl_old PRIVATE STUB_VERSION=2803)
  foreach(age "" _old)
    apogee_target_flags(process_stub_nccl${age})
    target_include_directories(process_stub_nccl${age} PRIVATE ${APOGEE_INCLUDE_ROOT})
    set_target_properties(process_stub_nccl${age} PROPERTIES PREFIX "" OUTPUT_NAME libnccl SUFFIX .so.2
                          LIBRARY_OUTPUT_DIRECTORY ${stub_nccl_folder}${age})
  endforeach()
  set(nccl_environment "OMP_WAIT_POLICY=passive;APOGEE_TEST_DEVICE=cuda;LD_LIBRARY_PATH=${stub_nccl_folder}")
  # apogee_nccl_run(NAME comm_x_nccl_test PROGRAM comm_x_test PROCESSES 4 ARGS ...): a program of apogee_test (ALONE)
  # once more, its ranks on emulated GPUs, over NCCL. TCP 4: also as comm_x_nccl_tcp_test, by `apogee run`.
  function(apogee_nccl_run)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;PROGRAM;PROCESSES;TCP" "ARGS")
    set(program $<TARGET_FILE:${arg_PROGRAM}> ${arg_ARGS})
    add_test(NAME ${arg_NAME} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/support/mpirun.sh ${MPIEXEC_EXECUTABLE}
                                      ${arg_PROCESSES} ${program})
    set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT 300 LABELS "cuda;mpi" ENVIRONMENT "${nccl_environment}")
    apogee_note_test(${arg_NAME} ${arg_PROGRAM})
    add_dependencies(${arg_PROGRAM} process_stub_nccl)
    if(arg_TCP AND TARGET apogee_command)
      string(REPLACE "_nccl_test" "_nccl_tcp_test" tcp_name ${arg_NAME})
      add_test(NAME ${tcp_name} COMMAND apogee_command run -n ${arg_TCP} ${program})
      set_tests_properties(${tcp_name} PROPERTIES TIMEOUT 300 LABELS "cuda;tcp" ENVIRONMENT "${nccl_environment}")
    endif()
  endfunction()
  foreach(subject nccl_group nccl_group_failures)
    apogee_mpi_test(ALONE NAME comm_${subject}_test SRCS comm/nccl/${subject}_test.cc LAYERS comm)
    set_tests_properties(comm_${subject}_test PROPERTIES LABELS "cuda;mpi" ENVIRONMENT "${nccl_environment}")
    add_dependencies(comm_${subject}_test process_stub_nccl)
  endforeach()
endif()
apogee_test(ALONE NAME comm_collectives_test SRCS comm/collectives_test.cc LAYERS comm LABELS threads DEVICES)
apogee_test(ALONE NAME comm_out_of_memory_test SRCS comm/out_of_memory_test.cc LAYERS comm LABELS threads)
apogee_test(ALONE NAME comm_failures_test SRCS comm/failures_test.cc LAYERS comm LABELS threads)
apogee_test(NAME comm_some_ranks_test SRCS comm/some_ranks_test.cc LAYERS comm LABELS threads)
apogee_mpi_test(NAME comm_some_ranks_mpi_test SRCS comm/some_ranks_test.cc LAYERS comm TCP 4)
apogee_mpi_test(NAME comm_collectives_mpi_test SRCS comm/collectives_test.cc LAYERS comm PROCESSES 5 TCP 4 2 3)
apogee_mpi_test(NAME comm_failures_mpi_test SRCS comm/failures_test.cc LAYERS comm TCP 4)
if(TARGET process_stub_nccl)
  apogee_nccl_run(NAME comm_collectives_nccl_test PROGRAM comm_collectives_test PROCESSES 5 TCP 4)
  apogee_nccl_run(NAME comm_failures_nccl_test PROGRAM comm_failures_test PROCESSES 4 TCP 4)
  add_test(NAME comm_nccl_too_old COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/support/mpirun.sh ${MPIEXEC_EXECUTABLE} 2
           $<TARGET_FILE:comm_collectives_test> --gtest_filter=GroupTest.TrafficIsCounted)
  set_tests_properties(comm_nccl_too_old PROPERTIES TIMEOUT 60 LABELS "cuda;mpi"
                       ENVIRONMENT "APOGEE_TEST_DEVICE=cuda;LD_LIBRARY_PATH=${stub_nccl_folder}_old"
                       PASS_REGULAR_EXPRESSION
                       "comm nccl: rank 0: nccl: libnccl.so.2 is NCCL 2.8.3, .*NCCL 2.14.0 or later.*use comm mpi")
endif()
apogee_mpi_test(NAME comm_flight_record_mpi_test SRCS comm/flight_record_test.cc LAYERS comm
                LIBS nlohmann_json::nlohmann_json TCP 4)
apogee_test(NAME comm_backend_test SRCS comm/backend_test.cc LAYERS comm)
apogee_test(NAME comm_gpus_test SRCS comm/gpus_test.cc LAYERS comm)
apogee_test(NAME comm_tree_reduce_test SRCS comm/tree_reduce_test.cc LAYERS comm)
if(APOGEE_HAS_CUDA)
  apogee_test(NAME comm_cuda_tree_reduce_test SRCS comm/cuda_tree_reduce_test.cc LAYERS comm LABELS cuda)
endif()
apogee_test(NAME comm_sign_kernels_test SRCS comm/sign_kernels_test.cc LAYERS comm DEVICES)
apogee_test(NAME comm_hierarchy_test SRCS comm/hierarchy_test.cc LAYERS comm)
# 2 machines of 2 ranks, 3 of 2, 2 of 4, and the one that there is.
apogee_mpi_test(NAME comm_machines_mpi_test SRCS comm/machines_test.cc LAYERS comm RANKS_PER_MACHINE 2
                MORE 6:2 8:4 3 TCP 4:2 6:2)
# One rank misbehaves; scripts/fault_trials.sh runs all trials.
find_package(CLI11 2.1 CONFIG QUIET REQUIRED)
apogee_program(NAME fault_ranks SRCS comm/faults/fault_ranks.cc comm/faults/trial.cc LAYERS comm
               LIBS CLI11::CLI11)
apogee_program(NAME comm_fault_trials SRCS comm/faults/fault_trials.cc comm/faults/judge.cc
               comm/faults/run_trial.cc comm/faults/trial.cc LAYERS comm LIBS CLI11::CLI11)
add_dependencies(comm_fault_trials fault_ranks)
# Processes without MPI.
apogee_test(NAME comm_tcp_job_test SRCS comm/tcp/tcp_job_test.cc LAYERS comm)
foreach(subject listen meeting proofs strangers transport)
  apogee_test(NAME comm_tcp_${subject}_test SRCS comm/tcp/tcp_${subject}_test.cc LAYERS comm LABELS tcp)
endforeach()
apogee_test(NAME comm_stopped_ranks_test SRCS comm/stopped_ranks_test.cc LAYERS comm LABELS tcp)
set(apogee_run)
if(TARGET apogee_command)
  set(apogee_run "$<TARGET_FILE:apogee_command> run -n")
  add_test(NAME comm_fault_trials_tcp COMMAND comm_fault_trials --backend tcp --sample 1 --late-again 2)
  set_tests_properties(comm_fault_trials_tcp PROPERTIES TIMEOUT 300 LABELS tcp RUN_SERIAL TRUE)
  apogee_test(ALONE NAME comm_tcp_faults_test SRCS comm/mpi_faults_test.cc LAYERS core LABELS tcp TIMEOUT 300
              LIBS nlohmann_json::nlohmann_json)
  target_compile_definitions(comm_tcp_faults_test PRIVATE APOGEE_MPIRUN="${apogee_run}" APOGEE_BACKEND="tcp"
                             APOGEE_FAULT_RANKS="$<TARGET_FILE:fault_ranks>"
                             APOGEE_SUITE="$<TARGET_FILE:comm_collectives_test>")
  add_dependencies(comm_tcp_faults_test fault_ranks comm_collectives_test apogee_command)
  apogee_test(ALONE NAME tools_run_test SRCS tools/run_test.cc LAYERS core LABELS tcp
              LIBS nlohmann_json::nlohmann_json)
  target_compile_definitions(tools_run_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  add_dependencies(tools_run_test apogee_command)
  if(TARGET 01_train_gpt)
    add_test(NAME comm_tcp_same_bits COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/mpi_same_bits.sh
             ${CMAKE_CURRENT_SOURCE_DIR}/support/apogee_run.sh $<TARGET_FILE:apogee_command>
             $<TARGET_FILE:01_train_gpt>)
    set_tests_properties(comm_tcp_same_bits PROPERTIES TIMEOUT 180 LABELS tcp)
  endif()
endif()
apogee_test(ALONE NAME comm_fault_judge_test SRCS comm/faults/judge_test.cc comm/faults/judge.cc
            comm/faults/run_trial.cc comm/faults/trial.cc LAYERS comm)
add_test(NAME comm_fault_trials COMMAND comm_fault_trials --backend threads --sample 24 --late-again 2)
# Alone: their time-out is a second, and a rank that gets no core for so long counts as one that does not come.
set_tests_properties(comm_fault_trials PROPERTIES TIMEOUT 300 LABELS threads RUN_SERIAL TRUE)
set(mpirun_command)
if(APOGEE_HAS_MPI)
  set(mpirun ${CMAKE_CURRENT_SOURCE_DIR}/support/mpirun.sh)
  set(mpirun_command "${mpirun} ${MPIEXEC_EXECUTABLE}")
  add_test(NAME comm_fault_trials_mpi COMMAND comm_fault_trials --backend mpi --sample 1 --late-again 2)
  set_tests_properties(comm_fault_trials_mpi PROPERTIES TIMEOUT 300 LABELS mpi RUN_SERIAL TRUE)
  add_custom_target(comm_fault_trials_mpi DEPENDS comm_fault_trials)  # tools/mutate.sh builds tests by name
  apogee_test(ALONE NAME comm_mpi_faults_test SRCS comm/mpi_faults_test.cc LAYERS core LABELS mpi TIMEOUT 300
              LIBS nlohmann_json::nlohmann_json)
  target_compile_definitions(comm_mpi_faults_test PRIVATE APOGEE_MPIRUN="${mpirun_command}" APOGEE_BACKEND="mpi"
                             APOGEE_FAULT_RANKS="$<TARGET_FILE:fault_ranks>"
                             APOGEE_SUITE="$<TARGET_FILE:comm_collectives_test>")
  add_dependencies(comm_mpi_faults_test fault_ranks comm_collectives_test)
  if(TARGET 01_train_gpt)
    add_test(NAME comm_mpi_same_bits COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/comm/mpi_same_bits.sh ${mpirun}
                                             ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:01_train_gpt>)
    set_tests_properties(comm_mpi_same_bits PROPERTIES TIMEOUT 180 LABELS mpi)
  endif()
else()
  apogee_skipped_test(comm_fault_trials_mpi mpi)
  apogee_skipped_test(comm_mpi_faults_test mpi)
  apogee_skipped_test(comm_mpi_same_bits mpi)
endif()
target_compile_definitions(comm_fault_trials PRIVATE APOGEE_MPIRUN="${mpirun_command}" APOGEE_RUN="${apogee_run}"
                           APOGEE_FAULT_RANKS="$<TARGET_FILE:fault_ranks>")
