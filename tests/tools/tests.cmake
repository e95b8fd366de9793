# SPDX-License-Identifier: Apache-2.0
if(TARGET apogee_command)
  apogee_test(ALONE NAME tools_verify_test SRCS tools/verify_test.cc LAYERS core)
  target_compile_definitions(tools_verify_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  add_dependencies(tools_verify_test apogee_command)
  apogee_test(ALONE NAME tools_verify_hf_test SRCS tools/verify_hf_test.cc LAYERS optim nn)
  target_compile_definitions(tools_verify_hf_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  add_dependencies(tools_verify_hf_test apogee_command)
  apogee_test(ALONE NAME tools_options_test SRCS tools/options_test.cc LAYERS optim)
  target_compile_definitions(tools_options_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  add_dependencies(tools_options_test apogee_command)
  apogee_test(ALONE NAME tools_inspect_diff_test SRCS tools/inspect_diff_test.cc LAYERS checkpoint)
  target_compile_definitions(tools_inspect_diff_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  add_dependencies(tools_inspect_diff_test apogee_command)
  apogee_test(ALONE NAME tools_timeline_test SRCS tools/timeline_test.cc LAYERS pictures)
  target_compile_definitions(tools_timeline_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  add_dependencies(tools_timeline_test apogee_command)
  apogee_test(ALONE NAME tools_hang_report_test SRCS tools/hang_report_test.cc LAYERS comm checkpoint LABELS threads
              LIBS apogee_hang_report)
  target_compile_definitions(tools_hang_report_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  add_dependencies(tools_hang_report_test apogee_command)
  apogee_test(NAME tools_doctor_test SRCS tools/doctor_test.cc LAYERS comm LIBS apogee_doctor)
  apogee_test(ALONE NAME tools_doctor_command_test SRCS tools/doctor_command_test.cc LAYERS comm LIBS apogee_doctor
              TIMEOUT 300 LABELS mpi)
  target_compile_definitions(tools_doctor_command_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
    target_compile_definitions(tools_doctor_command_test PRIVATE APOGEE_EMULATED_CUDA=1)
  endif()
  add_dependencies(tools_doctor_command_test apogee_command)
  if(APOGEE_SANITIZE)  # its self test starts Open MPI, which never frees some of its memory
    set_property(TEST tools_doctor_command_test APPEND PROPERTY ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
  endif()
  apogee_test(ALONE NAME tools_diff_runs_test SRCS tools/diff_runs_test.cc LAYERS booster)
  target_compile_definitions(tools_diff_runs_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  add_dependencies(tools_diff_runs_test apogee_command)
  apogee_test(ALONE NAME tools_report_test SRCS tools/report_test.cc LAYERS core)
  target_compile_definitions(tools_report_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>")
  add_dependencies(tools_report_test apogee_command)
  apogee_test(ALONE NAME tools_reshard_test SRCS tools/reshard_test.cc LAYERS checkpoint)
  target_compile_definitions(tools_reshard_test PRIVATE
                             APOGEE_COMMAND="$<TARGET_FILE:apogee_command>"
                             APOGEE_CHECK_SAFETENSORS="${PROJECT_SOURCE_DIR}/scripts/check_safetensors.py")
  add_dependencies(tools_reshard_test apogee_command)
  apogee_test(ALONE NAME tools_data_command_test SRCS tools/data_command_test.cc LAYERS data)
  target_compile_definitions(tools_data_command_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>"
                                                             APOGEE_GOLDEN="${CMAKE_CURRENT_SOURCE_DIR}/golden")
  add_dependencies(tools_data_command_test apogee_command)
  apogee_test(ALONE NAME tools_language_model_test SRCS tools/generate_command_test.cc tools/evaluate_command_test.cc
              LAYERS nn checkpoint data
              LIBS nlohmann_json::nlohmann_json)
  target_compile_definitions(tools_language_model_test PRIVATE APOGEE_COMMAND="$<TARGET_FILE:apogee_command>"
                                                               APOGEE_GOLDEN="${CMAKE_CURRENT_SOURCE_DIR}/golden")
  add_dependencies(tools_language_model_test apogee_command)
  foreach(dtype f32 f64)
    add_test(NAME golden_${dtype} COMMAND apogee_command verify --dtype ${dtype}
                                          ${CMAKE_CURRENT_SOURCE_DIR}/golden)
  endforeach()
endif()
