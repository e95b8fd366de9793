# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME chunk_gradient_chunks_test SRCS chunk/gradient_chunks_test.cc LAYERS chunk LABELS threads)
apogee_test(NAME chunk_sharded_parameters_test SRCS chunk/sharded_parameters_test.cc LAYERS chunk LABELS threads)
apogee_test(NAME chunk_gather_schedule_test SRCS chunk/gather_schedule_test.cc LAYERS chunk)
apogee_test(NAME chunk_parameter_chunks_test SRCS chunk/parameter_chunks_test.cc LAYERS chunk)
apogee_test(NAME chunk_chunk_plan_test SRCS chunk/chunk_plan_test.cc LAYERS chunk)
