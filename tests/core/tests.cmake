# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME core_dtype_test SRCS core/dtype_test.cc LAYERS core)
apogee_test(NAME core_error_test SRCS core/error_test.cc LAYERS core)
apogee_test(NAME core_file_allocator_test SRCS core/file_allocator_test.cc LAYERS core)
apogee_test(ALONE NAME core_float8_test SRCS core/float8_test.cc LAYERS core)
target_compile_definitions(core_float8_test PRIVATE
                           APOGEE_CHECK_FLOAT8="${PROJECT_SOURCE_DIR}/scripts/check_float8.py")
apogee_test(NAME core_hooks_test SRCS core/hooks_test.cc LAYERS core)
apogee_test(NAME core_memory_test SRCS core/memory_test.cc LAYERS core)
apogee_test(NAME core_rng_test SRCS core/rng_test.cc LAYERS core)
apogee_test(NAME core_shape_test SRCS core/shape_test.cc LAYERS core)
apogee_test(NAME core_shared_library_test SRCS core/shared_library_test.cc LAYERS core)
# A program that holds no test of the source says so, and does not pass with nothing run.
get_property(program GLOBAL PROPERTY APOGEE_TEST_PROGRAM_OF_core/shape_test.cc)
add_test(NAME only_source_test COMMAND ${program} --only-source=core/no_such_test.cc)
set_tests_properties(only_source_test PROPERTIES PASS_REGULAR_EXPRESSION
                     "--only-source=core/no_such_test.cc: this program holds no such tests")
apogee_test(NAME core_text_test SRCS core/text_test.cc LAYERS core)
apogee_test(NAME core_thread_team_test SRCS core/thread_team_test.cc LAYERS core)
apogee_test(NAME core_json_reader_test SRCS core/json_reader_test.cc LAYERS core
            LIBS nlohmann_json::nlohmann_json)
apogee_test(ALONE NAME core_trace_test SRCS core/trace_test.cc LAYERS core LIBS nlohmann_json::nlohmann_json
            LABELS threads)
