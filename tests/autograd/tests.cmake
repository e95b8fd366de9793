# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME autograd_documents_test SRCS autograd/documents_test.cc LAYERS autograd DEVICES)
apogee_test(NAME autograd_engine_test SRCS autograd/engine_test.cc LAYERS autograd)
apogee_test(NAME autograd_convolution_test SRCS autograd/convolution_test.cc LAYERS autograd DEVICES)
apogee_test(NAME autograd_functions_test SRCS autograd/functions_test.cc autograd/attention_functions_test.cc LAYERS autograd DEVICES)
apogee_test(NAME autograd_function_test SRCS autograd/function_test.cc LAYERS autograd DEVICES)
apogee_test(NAME autograd_wide_gradients_test SRCS autograd/wide_gradients_test.cc LAYERS autograd DEVICES)
apogee_test(NAME autograd_shape_errors_test SRCS autograd/shape_errors_test.cc LAYERS autograd DEVICES)
apogee_test(NAME autograd_op_table_test SRCS autograd/op_table_test.cc autograd/op_table.cc
            autograd/op_table_convolution.cc LAYERS nn
            LIBS nlohmann_json::nlohmann_json DEVICES)
target_compile_definitions(autograd_op_table_test
                           PRIVATE APOGEE_OP_VALUES="${CMAKE_CURRENT_SOURCE_DIR}/autograd/op_values.json")

# For scripts/check_ops.py.
apogee_program(NAME op_values SRCS autograd/op_values.cc autograd/op_table.cc autograd/op_table_convolution.cc LAYERS nn
               LIBS nlohmann_json::nlohmann_json)
apogee_test(NAME autograd_grouped_test SRCS autograd/grouped_test.cc LAYERS autograd DEVICES)
apogee_test(NAME autograd_head_loss_test SRCS autograd/head_loss_test.cc LAYERS autograd DEVICES)
