# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME autograd_engine_test SRCS autograd/engine_test.cc LAYERS autograd)
apogee_test(NAME autograd_functions_test SRCS autograd/functions_test.cc LAYERS autograd DEVICES)
