# SPDX-License-Identifier: Apache-2.0
if(TARGET 01_train_gpt)
  apogee_test(ALONE NAME examples_train_gpt_test SRCS examples/train_gpt_test.cc LAYERS core TIMEOUT 300
              LABELS threads)
  target_compile_definitions(examples_train_gpt_test PRIVATE APOGEE_TRAIN_GPT="$<TARGET_FILE:01_train_gpt>")
  add_dependencies(examples_train_gpt_test 01_train_gpt)
  apogee_test(ALONE NAME examples_train_gpt_resume_test SRCS examples/train_gpt_resume_test.cc LAYERS core
              TIMEOUT 300 LABELS threads)
  target_compile_definitions(examples_train_gpt_resume_test PRIVATE
                             APOGEE_TRAIN_GPT="$<TARGET_FILE:01_train_gpt>")
  add_dependencies(examples_train_gpt_resume_test 01_train_gpt)
  apogee_test(ALONE NAME examples_run_folder_test SRCS examples/run_folder_test.cc LAYERS booster TIMEOUT 300
              LABELS threads)
  target_compile_definitions(examples_run_folder_test PRIVATE
                             APOGEE_TRAIN_GPT="$<TARGET_FILE:01_train_gpt>")
  add_dependencies(examples_run_folder_test 01_train_gpt)

  if(TARGET 03_train_llama_hybrid AND TARGET 04_gemini_big_model AND TARGET 05_train_3d)
    apogee_test(ALONE NAME examples_report_test SRCS examples/report_test.cc LAYERS report TIMEOUT 300 LABELS threads)
    target_compile_definitions(examples_report_test PRIVATE
                               APOGEE_TRAIN_GPT="$<TARGET_FILE:01_train_gpt>"
                               APOGEE_TRAIN_LLAMA_HYBRID="$<TARGET_FILE:03_train_llama_hybrid>"
                               APOGEE_GEMINI_BIG_MODEL="$<TARGET_FILE:04_gemini_big_model>"
                               APOGEE_TRAIN_3D="$<TARGET_FILE:05_train_3d>")
    add_dependencies(examples_report_test 01_train_gpt 03_train_llama_hybrid 04_gemini_big_model 05_train_3d)
  endif()

  apogee_test(ALONE NAME examples_hostile_checkpoints_test SRCS examples/hostile_checkpoints_test.cc LAYERS core
              TIMEOUT 300 LABELS hostile)
  target_compile_definitions(examples_hostile_checkpoints_test PRIVATE
                             APOGEE_TRAIN_GPT="$<TARGET_FILE:01_train_gpt>")
  add_dependencies(examples_hostile_checkpoints_test 01_train_gpt)

  # scripts/kill_storm.sh runs it with more kills.
  find_package(CLI11 2.1 CONFIG QUIET REQUIRED)
  find_package(nlohmann_json 3.11 QUIET REQUIRED)
  apogee_program(NAME kill_storm SRCS examples/kill_storm.cc LAYERS checkpoint
                 LIBS CLI11::CLI11 nlohmann_json::nlohmann_json)
  foreach(ranks 0 1 2 3 4)
    add_test(NAME kill_storm_ranks_${ranks}
             COMMAND kill_storm --program $<TARGET_FILE:01_train_gpt> --kills 20 --ranks ${ranks})
    set_tests_properties(kill_storm_ranks_${ranks} PROPERTIES TIMEOUT 300 LABELS threads)
  endforeach()
  add_dependencies(kill_storm 01_train_gpt)
endif()

if(TARGET 03_train_llama_hybrid)
  apogee_test(ALONE NAME examples_train_llama_hybrid_test SRCS examples/train_llama_hybrid_test.cc LAYERS core
              TIMEOUT 300 LABELS threads)
  target_compile_definitions(examples_train_llama_hybrid_test PRIVATE
                             APOGEE_TRAIN_LLAMA="$<TARGET_FILE:03_train_llama_hybrid>")
  add_dependencies(examples_train_llama_hybrid_test 03_train_llama_hybrid)
endif()

if(TARGET 04_gemini_big_model)
  apogee_test(ALONE NAME examples_gemini_big_model_test SRCS examples/gemini_big_model_test.cc LAYERS core
              TIMEOUT 300 LABELS threads)
  target_compile_definitions(examples_gemini_big_model_test PRIVATE
                             APOGEE_GEMINI_BIG_MODEL="$<TARGET_FILE:04_gemini_big_model>")
  add_dependencies(examples_gemini_big_model_test 04_gemini_big_model)
endif()

if(TARGET 08_train_moe)
  apogee_test(ALONE NAME examples_train_moe_test SRCS examples/train_moe_test.cc LAYERS core TIMEOUT 300 LABELS threads)
  target_compile_definitions(examples_train_moe_test PRIVATE APOGEE_TRAIN_MOE="$<TARGET_FILE:08_train_moe>")
  add_dependencies(examples_train_moe_test 08_train_moe)
endif()

if(TARGET 05_train_3d)
  apogee_test(ALONE NAME examples_train_3d_test SRCS examples/train_3d_test.cc LAYERS core TIMEOUT 300 LABELS threads)
  target_compile_definitions(examples_train_3d_test PRIVATE APOGEE_TRAIN_3D="$<TARGET_FILE:05_train_3d>")
  add_dependencies(examples_train_3d_test 05_train_3d)
endif()

if(TARGET 06_classify_images)
  apogee_test(ALONE NAME examples_own_model_test SRCS examples/own_model_test.cc LAYERS core TIMEOUT 300
              LIBS nlohmann_json::nlohmann_json LABELS threads)
  target_compile_definitions(examples_own_model_test PRIVATE
                             APOGEE_CLASSIFY_IMAGES="$<TARGET_FILE:06_classify_images>"
                             APOGEE_RECURRENT_TEXT="$<TARGET_FILE:06_recurrent_text>")
  add_dependencies(examples_own_model_test 06_classify_images 06_recurrent_text)
endif()

if(TARGET 07_finetune)
  apogee_test(ALONE NAME examples_finetune_test SRCS examples/finetune_test.cc LAYERS driver TIMEOUT 300
              LIBS nlohmann_json::nlohmann_json LABELS threads)
  target_compile_definitions(examples_finetune_test PRIVATE
                             APOGEE_FINETUNE="$<TARGET_FILE:07_finetune>"
                             APOGEE_NEW_MODEL="$<TARGET_FILE:07_new_model>"
                             APOGEE_GOLDEN="${CMAKE_CURRENT_SOURCE_DIR}/golden"
                             APOGEE_SCRIPTS="${PROJECT_SOURCE_DIR}/scripts")
  add_dependencies(examples_finetune_test 07_finetune 07_new_model)
  if(TARGET apogee_command)
    target_compile_definitions(examples_finetune_test PRIVATE APOGEE_BUILD_FOLDER="${PROJECT_BINARY_DIR}")
    add_dependencies(examples_finetune_test apogee_command)
  endif()
endif()

if(TARGET 01_train_gpt)
  add_subdirectory(hostile)
endif()
if(TARGET 02_bring_your_own_gradients)
  add_test(NAME examples_bring_your_own_gradients_test COMMAND 02_bring_your_own_gradients)
  set_tests_properties(examples_bring_your_own_gradients_test PROPERTIES
                       PASS_REGULAR_EXPRESSION "step 400  loss 0\\.0000.*w = 3\\.00.. -0\\.50")
endif()

# Files that start runs on clusters, and Dockerfiles: without a cluster and without Docker. 77: a tool is missing.
if(TARGET 01_train_gpt)
  if(APOGEE_PYTHON3)
    foreach(cluster slurm kubernetes)
      add_test(NAME cluster_${cluster}_check COMMAND ${APOGEE_PYTHON3} ${CMAKE_CURRENT_SOURCE_DIR}/examples/cluster_check.py
                                                     ${cluster} $<TARGET_FILE:01_train_gpt>)
      set_tests_properties(cluster_${cluster}_check PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)
      apogee_note_test(cluster_${cluster}_check 01_train_gpt)
    endforeach()
  endif()
  add_test(NAME docker_check COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/packaging/docker_check.sh $<TARGET_FILE:01_train_gpt>)
  set_tests_properties(docker_check PROPERTIES TIMEOUT 300)
  apogee_note_test(docker_check 01_train_gpt)
endif()
