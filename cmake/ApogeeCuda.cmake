# SPDX-License-Identifier: Apache-2.0
# Adds a layer's CUDA sources (paths relative to the folder):
#
#   apogee_cuda_sources(target [EXACT] SRCS cuda/norm.cu ... HOST_SRCS cuda/context.cc ...)
#
# SRCS are compiled by nvcc, or by the host compiler for the GPU in software. HOST_SRCS are plain C++ that calls
# CUDA's runtime. EXACT: no product is fused with an addition. Kernels that are bound by memory lose no time by it,
# and compute the same bits however their operands are loaded, cut or aligned. In a unity build (APOGEE_UNITY) six
# sources are compiled as one, because most of the time goes into reading CUDA's headers.

# CUDA's runtime for programs and kernels. Shared libraries must share one, too.
set(APOGEE_CUDART CUDA::cudart_static)
if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
  set(APOGEE_CUDART apogee_cuda_emulation)
elseif(BUILD_SHARED_LIBS)
  set(APOGEE_CUDART CUDA::cudart)
endif()

if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
  add_subdirectory(${PROJECT_SOURCE_DIR}/tests/cuda_emulation ${PROJECT_BINARY_DIR}/tests/cuda_emulation)
endif()

function(apogee_cuda_sources target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "EXACT" "" "SRCS;HOST_SRCS")
  if(APOGEE_UNITY)
    set(kind kernels)
    if(arg_EXACT)
      set(kind exact_kernels)
    endif()
    if(NOT target MATCHES "^apogee_")  # programs of one folder share a build folder
      string(PREPEND kind ${target}_)
    endif()
    apogee_cuda_groups(arg_SRCS ${kind} ${arg_SRCS})
  endif()
  target_sources(${target} PRIVATE ${arg_SRCS} ${arg_HOST_SRCS})
  if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
    # No precompiled header, because it would have to come before device.h, which replaces nvcc. -O1, because
    # compiling takes longer than running.
    set_source_files_properties(${arg_SRCS} PROPERTIES LANGUAGE CXX SKIP_PRECOMPILE_HEADERS ON
                                SKIP_UNITY_BUILD_INCLUSION ON)
    set_property(SOURCE ${arg_SRCS} PROPERTY COMPILE_OPTIONS -x c++ -include
                 ${PROJECT_SOURCE_DIR}/tests/cuda_emulation/device.h -Wno-unknown-pragmas -O1)
    # -fsanitize=thread calls the emulation before each access to memory, which so finds races
    # (tests/cuda_emulation/races.h); -g1 lets it name lines. No sanitizer's library is linked.
    if(APOGEE_EMULATED_RACES)
      set_property(SOURCE ${arg_SRCS} APPEND PROPERTY COMPILE_OPTIONS -g1 -fsanitize=thread)
      if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        set_property(SOURCE ${arg_SRCS} APPEND PROPERTY COMPILE_OPTIONS --param=tsan-instrument-func-entry-exit=0)
      endif()
    endif()
    if(arg_EXACT)
      set_property(SOURCE ${arg_SRCS} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
    endif()
    set_property(SOURCE ${arg_HOST_SRCS} APPEND PROPERTY COMPILE_DEFINITIONS APOGEE_CUDA_EMULATED=1)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:apogee_cuda_emulation>)
    return()
  endif()
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 20)
  # Kernels call constexpr functions of core/, and have lambdas as bodies.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;-Xcompiler=-Wall>")
  if(arg_EXACT)
    set_property(SOURCE ${arg_SRCS} APPEND PROPERTY COMPILE_OPTIONS --fmad=false)
  endif()
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE ${APOGEE_CUDART})
endfunction()

# Sets `out` to files that include six of the sources each. CMake 3.25 has unity builds for C and C++ only.
function(apogee_cuda_groups out name)
  set(count 0)
  foreach(source IN LISTS ARGN)
    math(EXPR last "${count} / 6")
    string(APPEND text_${last} "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
    math(EXPR count "${count} + 1")
  endforeach()
  set(groups)
  foreach(index RANGE ${last})
    list(APPEND groups ${CMAKE_CURRENT_BINARY_DIR}/${name}_${index}.cu)
    # Writes only what has changed.
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}_${index}.cu CONTENT "${text_${index}}" @ONLY)
  endforeach()
  set(${out} ${groups} PARENT_SCOPE)
endfunction()
