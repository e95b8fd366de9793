# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME checkpoint_checkpoint_test SRCS checkpoint/checkpoint_test.cc LAYERS checkpoint
            LABELS threads DEVICES)
apogee_mpi_test(NAME checkpoint_checkpoint_mpi_test SRCS checkpoint/checkpoint_test.cc LAYERS checkpoint)
apogee_test(NAME checkpoint_corruption_test SRCS checkpoint/corruption_test.cc LAYERS checkpoint LABELS threads
            TIMEOUT 300)
apogee_test(ALONE NAME checkpoint_hf_weights_test SRCS checkpoint/hf_weights_test.cc checkpoint/hf_index_test.cc
            LAYERS checkpoint
            LABELS threads)
target_compile_definitions(checkpoint_hf_weights_test PRIVATE
                           APOGEE_CHECK_SAFETENSORS="${PROJECT_SOURCE_DIR}/scripts/check_safetensors.py")
apogee_test(NAME checkpoint_hf_names_test SRCS checkpoint/hf_names_test.cc checkpoint/hf_prefixes_test.cc LAYERS checkpoint nn)
apogee_test(ALONE NAME checkpoint_parse_memory_test SRCS checkpoint/parse_memory_test.cc LAYERS checkpoint nn)
apogee_test(ALONE NAME checkpoint_safetensors_rules_test SRCS checkpoint/safetensors_rules_test.cc
            LAYERS checkpoint)
target_compile_definitions(checkpoint_safetensors_rules_test PRIVATE
                           APOGEE_HEADER_SEEDS="${CMAKE_CURRENT_SOURCE_DIR}/fuzz/seeds/safetensors_header")
apogee_test(NAME checkpoint_reshard_test SRCS checkpoint/reshard_test.cc LAYERS checkpoint LABELS threads)
apogee_test(NAME checkpoint_crash_test SRCS checkpoint/crash_test.cc LAYERS checkpoint LABELS threads)
apogee_test(NAME checkpoint_file_system_test SRCS checkpoint/file_system_test.cc LAYERS checkpoint)
apogee_test(NAME checkpoint_folder_test SRCS checkpoint/folder_test.cc LAYERS checkpoint LABELS threads)
apogee_test(NAME checkpoint_safetensors_reader_test SRCS checkpoint/safetensors_reader_test.cc
            LAYERS checkpoint)
