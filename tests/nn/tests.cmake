# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME nn_convolution_test SRCS nn/convolution_test.cc LAYERS nn DEVICES)
apogee_test(NAME nn_documents_test SRCS nn/documents_test.cc LAYERS nn)
apogee_test(NAME nn_module_test SRCS nn/module_test.cc LAYERS nn)
apogee_test(NAME nn_module_names_test SRCS nn/module_names_test.cc LAYERS nn)
apogee_test(NAME nn_trace_modules_test SRCS nn/trace_modules_test.cc LAYERS nn
            LIBS nlohmann_json::nlohmann_json)
apogee_test(ALONE NAME nn_hf_config_test SRCS nn/hf_config_test.cc LAYERS nn LIBS nlohmann_json::nlohmann_json)
target_compile_definitions(nn_hf_config_test PRIVATE
                           APOGEE_HF_CONFIGS="${CMAKE_CURRENT_SOURCE_DIR}/nn/hf_configs")
apogee_test(NAME nn_losses_test SRCS nn/losses_test.cc LAYERS nn DEVICES)
apogee_test(NAME nn_sequential_test SRCS nn/sequential_test.cc LAYERS nn)
apogee_test(NAME nn_module_tensors_test SRCS nn/module_tensors_test.cc LAYERS nn)
apogee_test(NAME nn_recurrent_test SRCS nn/recurrent_misuse_test.cc nn/recurrent_test.cc LAYERS nn DEVICES)
apogee_test(NAME nn_batch_norm_test SRCS nn/batch_norm_test.cc LAYERS nn)
