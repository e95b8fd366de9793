# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME booster_metrics_test SRCS booster/metrics_test.cc LAYERS booster)
apogee_test(NAME booster_run_config_test SRCS booster/run_config_test.cc LAYERS booster LABELS threads)
apogee_test(NAME booster_run_lock_test SRCS booster/run_lock_test.cc LAYERS booster LABELS threads)
apogee_test(NAME booster_trace_test SRCS booster/trace_test.cc LAYERS booster
            LIBS nlohmann_json::nlohmann_json LABELS threads)
apogee_test(NAME booster_adapter_test SRCS booster/lora/adapter_test.cc LAYERS booster LABELS threads)
apogee_mpi_test(NAME booster_adapter_mpi_test SRCS booster/lora/adapter_test.cc LAYERS booster)
apogee_test(NAME booster_quantized_base_test SRCS booster/lora/quantized_base_test.cc LAYERS booster
            LABELS threads)
apogee_mpi_test(NAME booster_quantized_base_mpi_test SRCS booster/lora/quantized_base_test.cc LAYERS booster)
apogee_test(NAME booster_evaluation_weights_test SRCS booster/evaluation_weights_test.cc LAYERS booster
            LABELS threads)
apogee_mpi_test(NAME booster_evaluation_weights_mpi_test SRCS booster/evaluation_weights_test.cc
                LAYERS booster)
apogee_test(NAME booster_booster_test SRCS booster/booster_test.cc LAYERS booster)
apogee_test(NAME booster_accumulation_test SRCS booster/accumulation_test.cc LAYERS booster LABELS threads)
apogee_test(NAME booster_closed_tree_test SRCS booster/closed_tree_test.cc LAYERS booster)
if(APOGEE_HAS_CUDA)
  apogee_test(NAME booster_graphed_step_test SRCS booster/graphed_step_test.cc LAYERS booster
              LABELS cuda TIMEOUT 300)
  apogee_test(NAME booster_graphed_optimizer_test SRCS booster/graphed_optimizer_test.cc LAYERS booster
              LABELS cuda TIMEOUT 300)
endif()
apogee_test(NAME booster_training_state_test SRCS booster/training_state_test.cc LAYERS booster
            LABELS threads TIMEOUT 600)
apogee_mpi_test(NAME booster_training_state_mpi_test SRCS booster/training_state_test.cc LAYERS booster
                TIMEOUT 600)
apogee_test(NAME booster_onebit_resume_test SRCS booster/onebit_resume_test.cc LAYERS booster
            LABELS threads TIMEOUT 300)
apogee_test(NAME booster_checkpoints_test SRCS booster/booster_checkpoints_test.cc LAYERS booster
            LABELS threads)
apogee_test(NAME booster_async_save_test SRCS booster/async_save_test.cc LAYERS booster LABELS threads)
apogee_test(NAME booster_kill_anywhere_test SRCS booster/kill_anywhere_test.cc LAYERS booster TIMEOUT 300)
apogee_test(NAME booster_resume_damaged_test SRCS booster/resume_damaged_test.cc LAYERS booster
            LABELS threads TIMEOUT 300)
apogee_test(NAME booster_hostile_folder_test SRCS booster/hostile_folder_test.cc LAYERS booster LABELS threads
            TIMEOUT 300)
apogee_test(ALONE NAME booster_golden_checkpoints_test SRCS booster/golden_checkpoints_test.cc LAYERS booster
            LABELS threads)
target_compile_definitions(booster_golden_checkpoints_test PRIVATE
                           APOGEE_GOLDEN_CHECKPOINTS="${CMAKE_CURRENT_SOURCE_DIR}/golden_checkpoints")
# Run by hand, for a new version of the format.
apogee_program(NAME write_golden_checkpoints SRCS booster/write_golden_checkpoints.cc LAYERS booster)
# What scripts/kill_every_syscall.sh kills.
apogee_program(NAME save_once_program SRCS booster/save_once_program.cc LAYERS booster)
apogee_test(NAME booster_experts_resume_test SRCS booster/experts_resume_test.cc LAYERS booster
            LABELS threads TIMEOUT 300)
apogee_test(NAME booster_reshard_resume_test SRCS booster/reshard_resume_test.cc LAYERS booster
            LABELS threads TIMEOUT 300)
apogee_mpi_test(NAME booster_reshard_resume_mpi_test SRCS booster/reshard_resume_test.cc LAYERS booster
                TIMEOUT 300)
apogee_test(NAME booster_replica_check_test SRCS booster/replica_check_test.cc LAYERS booster LABELS threads)
apogee_test(NAME booster_resume_precision_test SRCS booster/resume_precision_test.cc LAYERS booster)
apogee_test(NAME booster_save_model_test SRCS booster/save_model_test.cc LAYERS booster LABELS threads
            TIMEOUT 300)
apogee_mpi_test(NAME booster_save_model_mpi_test SRCS booster/save_model_test.cc LAYERS booster TIMEOUT 300)
apogee_test(ALONE NAME booster_torch_gpt2_test SRCS booster/torch_gpt2_test.cc LAYERS booster
            LIBS nlohmann_json::nlohmann_json)
target_compile_definitions(booster_torch_gpt2_test PRIVATE
                           APOGEE_TORCH_GPT2="${PROJECT_SOURCE_DIR}/scripts/torch_gpt2.py")
apogee_test(NAME booster_token_windows_test SRCS booster/token_windows_test.cc LAYERS booster LABELS threads)
apogee_test(NAME booster_pretrained_test SRCS booster/pretrained/pretrained_test.cc LAYERS booster LABELS threads)
apogee_test(NAME booster_pretrained_plugins_test SRCS booster/pretrained/plugins_test.cc LAYERS booster
            LABELS threads TIMEOUT 300)
apogee_test(NAME booster_pretrained_experts_test SRCS booster/pretrained/experts_test.cc LAYERS booster LABELS threads)
apogee_test(NAME booster_pretrained_refusals_test SRCS booster/pretrained/refusals_test.cc LAYERS booster
            LABELS threads)
apogee_test(NAME booster_pretrained_quantized_files_test SRCS booster/pretrained/quantized_files_test.cc
            LAYERS booster LABELS threads)
