# SPDX-License-Identifier: Apache-2.0
# Third-party libraries. Abseil, Eigen and libsodium are required; each of the others sets APOGEE_HAS_<X> and
# a text for the summary. Nothing is downloaded.

find_package(absl REQUIRED CONFIG)
find_package(Eigen3 3.4 REQUIRED CONFIG)
find_package(Threads REQUIRED)
find_package(Sodium 1.0.18 QUIET)
if(NOT Sodium_FOUND)
  message(FATAL_ERROR "libsodium 1.0.18 or later was not found, with which the processes of a job prove that "
                      "they belong to it; install libsodium-dev, or set Sodium_ROOT")
endif()
set(APOGEE_HAS_SODIUM ON)

set(APOGEE_HAS_OPENMP OFF)
set(APOGEE_OPENMP_TEXT "off")
if(APOGEE_WITH_OPENMP)
  find_package(OpenMP COMPONENTS CXX)
  if(NOT OpenMP_CXX_FOUND)
    message(FATAL_ERROR "APOGEE_WITH_OPENMP=ON: the compiler has no OpenMP; install libgomp1 (g++) or "
                        "libomp-dev (clang), or configure with -DAPOGEE_WITH_OPENMP=OFF")
  endif()
  set(APOGEE_HAS_OPENMP ON)
  set(APOGEE_OPENMP_TEXT "on (${OpenMP_CXX_VERSION})")
endif()

# optional_library(<X> <package> [VERSION <least>] TITLE <name> INSTALL <Debian's package> WITHOUT <what is missing>)
# looks for what APOGEE_WITH_<X> (ON, OFF, AUTO) asks for.
function(optional_library x package)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "VERSION;TITLE;INSTALL;WITHOUT" "")
  set(has OFF)
  set(text "off")
  if(NOT APOGEE_WITH_${x} STREQUAL "OFF")
    find_package(${package} ${arg_VERSION} QUIET)
    if(${package}_FOUND)
      set(has ON)
      set(text "on")
      if(${package}_VERSION)
        string(APPEND text " (${${package}_VERSION})")
      endif()
    elseif(APOGEE_WITH_${x} STREQUAL "ON")
      message(FATAL_ERROR "APOGEE_WITH_${x}=ON: ${arg_TITLE} was not found; install ${arg_INSTALL}, or set "
                          "${package}_ROOT")
    else()
      set(text "not found (${arg_INSTALL}): ${arg_WITHOUT}")
    endif()
  endif()
  set(APOGEE_HAS_${x} ${has} PARENT_SCOPE)
  set(APOGEE_${x}_TEXT "${text}" PARENT_SCOPE)
endfunction()
optional_library(ONEDNN OneDNN VERSION 2.5 TITLE oneDNN INSTALL libdnnl-dev WITHOUT "products through Eigen")
optional_library(UTF8PROC Utf8proc VERSION 2.5 TITLE utf8proc INSTALL libutf8proc-dev
                 WITHOUT "no tokenizers of GPT-2, Llama 3 and Qwen2")
optional_library(SENTENCEPIECE SentencePiece TITLE SentencePiece INSTALL libsentencepiece-dev
                 WITHOUT "no .model files")

set(APOGEE_HAS_MPI OFF)
set(APOGEE_MPI_TEXT "off")
if(NOT APOGEE_WITH_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)  # the C++ bindings, which MPI itself has dropped
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(APOGEE_HAS_MPI ON)
    set(APOGEE_MPI_TEXT "on (MPI ${MPI_CXX_VERSION}, ${MPIEXEC_EXECUTABLE})")
  elseif(APOGEE_WITH_MPI STREQUAL "ON")
    message(FATAL_ERROR "APOGEE_WITH_MPI=ON: MPI was not found; install libopenmpi-dev or libmpich-dev, "
                        "or set MPI_HOME")
  else()
    set(APOGEE_MPI_TEXT "not found (libopenmpi-dev): ranks are threads")
  endif()
endif()

# NCCL is loaded at run time, and comm/nccl/abi.h declares its interface, so AUTO needs nothing at build time.
# If nccl.h is found, those declarations are compared with it. ON requires nccl.h.
set(APOGEE_HAS_NCCL OFF)
set(APOGEE_NCCL_TEXT "off")
set(APOGEE_NCCL_INCLUDE_DIR "")
if(NOT APOGEE_WITH_NCCL STREQUAL "OFF")
  set(APOGEE_HAS_NCCL ON)
  find_path(APOGEE_NCCL_HEADER_DIR nccl.h HINTS $ENV{NCCL_HOME}/include /usr/local/cuda/include)
  mark_as_advanced(APOGEE_NCCL_HEADER_DIR)
  if(APOGEE_NCCL_HEADER_DIR)
    include(CheckIncludeFileCXX)
    set(CMAKE_REQUIRED_INCLUDES ${APOGEE_NCCL_HEADER_DIR} /usr/local/cuda/include)
    check_include_file_cxx(nccl.h APOGEE_NCCL_HEADER_WORKS)  # it includes CUDA's headers
    if(APOGEE_NCCL_HEADER_WORKS)
      set(APOGEE_NCCL_INCLUDE_DIR ${CMAKE_REQUIRED_INCLUDES})
    endif()
    unset(CMAKE_REQUIRED_INCLUDES)
  endif()
  if(APOGEE_NCCL_INCLUDE_DIR)
    set(APOGEE_NCCL_TEXT "loaded at run time (nccl.h compared: ${APOGEE_NCCL_HEADER_DIR})")
  elseif(APOGEE_WITH_NCCL STREQUAL "ON")
    message(FATAL_ERROR "APOGEE_WITH_NCCL=ON: nccl.h was not found, or not CUDA's headers that it includes; "
                        "install libnccl-dev, set NCCL_HOME, or configure with -DAPOGEE_WITH_NCCL=AUTO")
  else()
    set(APOGEE_NCCL_TEXT "loaded at run time (no nccl.h to compare with)")
  endif()
endif()

# EMULATED compiles the kernels for a GPU in software (tests/cuda_emulation), to test them on machines without a
# GPU. It needs CUDA's headers, too. CUDA libraries other than the runtime are loaded by programs at run time.
set(APOGEE_HAS_CUDA OFF)
set(APOGEE_CUDA_TEXT "off")
if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
  find_path(APOGEE_CUDA_INCLUDE_DIR cuda_runtime.h
            HINTS $ENV{CUDA_HOME}/include $ENV{CUDA_PATH}/include /usr/local/cuda/include)
  find_package(Boost 1.71 QUIET COMPONENTS context)
  if(NOT APOGEE_CUDA_INCLUDE_DIR OR NOT Boost_FOUND)
    message(FATAL_ERROR "APOGEE_WITH_CUDA=EMULATED: needs CUDA's headers (set CUDA_HOME) and Boost.Context "
                        "(libboost-context-dev)")
  endif()
  set(APOGEE_HAS_CUDA ON)
  set(APOGEE_CUDA_TEXT "emulated on the processor, for tests")
elseif(NOT APOGEE_WITH_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER $ENV{CUDACXX})
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(APOGEE_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
    mark_as_advanced(APOGEE_NVCC)
    if(APOGEE_NVCC)
      set(CMAKE_CUDA_COMPILER ${APOGEE_NVCC})
    endif()
  endif()
  # AUTO ignores an nvcc that is too old or does not support this C++ compiler.
  set(nvcc_fault "")
  if(CMAKE_CUDA_COMPILER AND APOGEE_WITH_CUDA STREQUAL "AUTO")
    file(WRITE ${PROJECT_BINARY_DIR}/nvcc_probe.cu
         "#include <cuda_runtime.h>\nstatic_assert(CUDART_VERSION >= 12010);\n")
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} -std=c++20 -ccbin ${CMAKE_CXX_COMPILER} -c nvcc_probe.cu
                            -o nvcc_probe.o
                    WORKING_DIRECTORY ${PROJECT_BINARY_DIR} RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed)
      set(nvcc_fault "off (${CMAKE_CUDA_COMPILER} is older than CUDA 12.1, or does not take this compiler)")
      unset(CMAKE_CUDA_COMPILER)
      unset(CMAKE_CUDA_COMPILER CACHE)
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    if(NOT CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPUs to compile kernels for")  # H100, H200
    endif()
    if(NOT CMAKE_CUDA_HOST_COMPILER)
      set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
    endif()
    # CMake 3.25 does not know nvcc's flag for C++20, and CUDA takes the standard of C++ that a project or toolchain asks for.
    set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
    enable_language(CUDA)
    foreach(kind IN ITEMS STANDARD EXTENSION)
      if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
        set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
      endif()
    endforeach()
    find_package(CUDAToolkit 12.1 REQUIRED)  # kernels with parameters of 32 KB
    set(APOGEE_HAS_CUDA ON)
    set(APOGEE_CUDA_TEXT "on (${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES})")
  elseif(APOGEE_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "APOGEE_WITH_CUDA=ON: nvcc was not found; put it in PATH, set CUDA_HOME, or "
                        "-DCMAKE_CUDA_COMPILER=")
  elseif(nvcc_fault)
    set(APOGEE_CUDA_TEXT "${nvcc_fault}")
  else()
    set(APOGEE_CUDA_TEXT "off (no nvcc)")
  endif()
endif()
