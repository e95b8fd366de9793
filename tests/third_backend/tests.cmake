# SPDX-License-Identifier: Apache-2.0
# A third device backend, added as docs/adding_a_backend.md says: one more line in the list, and the functions of each
# layer. No file of another backend is touched; the sources that choose among backends are compiled again, with
# the longer list. They take the place of the library's.
file(READ ${PROJECT_SOURCE_DIR}/core/device_backends.h list)
string(REPLACE "  X(kCuda, cuda, \"cuda\", __VA_ARGS__)"
               "  X(kCuda, cuda, \"cuda\", __VA_ARGS__) \\\n  X(kThird, third, \"third\", __VA_ARGS__)" longer "${list}")
if(longer STREQUAL list)
  message(FATAL_ERROR "tests/third_backend: core/device_backends.h has no line of CUDA to add another one after")
endif()
set(third_backend_include ${CMAKE_CURRENT_BINARY_DIR}/third_backend)
file(CONFIGURE OUTPUT ${third_backend_include}/apogee/core/device_backends.h CONTENT "${longer}" @ONLY)

apogee_test(ALONE NAME third_backend_test SRCS third_backend/third_backend_test.cc LAYERS optim)
target_sources(third_backend_test PRIVATE third_backend/third_backend.cc
               ${PROJECT_SOURCE_DIR}/core/device.cc ${PROJECT_SOURCE_DIR}/tensor/make_context.cc
               ${PROJECT_SOURCE_DIR}/optim/core/device_backend.cc ${PROJECT_SOURCE_DIR}/comm/device_backend.cc)
target_include_directories(third_backend_test BEFORE PRIVATE ${third_backend_include})
set_target_properties(third_backend_test PROPERTIES UNITY_BUILD OFF DISABLE_PRECOMPILE_HEADERS ON)
