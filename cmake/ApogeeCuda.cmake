# SPDX-License-Identifier: Apache-2.0
# apogee_cuda_sources(target [EXACT] SRCS cuda/norm.cu ... HOST_SRCS cuda/context.cc ...): adds a layer's CUDA sources
# (paths relative to the folder), compiled by nvcc, or by the host compiler against the GPU in software.
# EXACT: no product is fused with an addition. What is bound by memory loses nothing by it, and has the same bits
# whichever way its operands are loaded, cut or aligned.
# HOST_SRCS are plain C++ that calls CUDA's runtime.

if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
  add_subdirectory(${PROJECT_SOURCE_DIR}/tests/cuda_emulation ${PROJECT_BINARY_DIR}/tests/cuda_emulation)
endif()

function(apogee_cuda_sources target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "EXACT" "" "SRCS;HOST_SRCS")
  target_sources(${target} PRIVATE ${arg_SRCS} ${arg_HOST_SRCS})
  if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
    # A precompiled header would have to come first, before what stands in for nvcc. -O1: compiling takes longer than
    # running.
    set_source_files_properties(${arg_SRCS} PROPERTIES LANGUAGE CXX SKIP_PRECOMPILE_HEADERS ON
                                SKIP_UNITY_BUILD_INCLUSION ON)
    set_property(SOURCE ${arg_SRCS} PROPERTY COMPILE_OPTIONS -x c++ -include
                 ${PROJECT_SOURCE_DIR}/tests/cuda_emulation/device.h -Wno-unknown-pragmas -O1)
    if(arg_EXACT)
      set_property(SOURCE ${arg_SRCS} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
    endif()
    set_property(SOURCE ${arg_HOST_SRCS} APPEND PROPERTY COMPILE_DEFINITIONS APOGEE_CUDA_EMULATED=1)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:apogee_cuda_emulation>)
    return()
  endif()
  # constexpr functions of core/ are called by kernels; lambdas are kernels' bodies. The standard is named here
  # because CMake 3.25 does not know that nvcc has it.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;--extended-lambda;-Xcompiler=-Wall>")
  if(arg_EXACT)
    set_property(SOURCE ${arg_SRCS} APPEND PROPERTY COMPILE_OPTIONS --fmad=false)
  endif()
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
