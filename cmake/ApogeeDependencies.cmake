# Third-party libraries. Abseil and Eigen are required; each of the others sets APOGEE_HAS_<X> and a text
# for the summary. Nothing is downloaded.

find_package(absl REQUIRED CONFIG)
find_package(Eigen3 3.4 REQUIRED CONFIG)
find_package(Threads REQUIRED)

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

set(APOGEE_HAS_ONEDNN OFF)
set(APOGEE_ONEDNN_TEXT "off")
if(NOT APOGEE_WITH_ONEDNN STREQUAL "OFF")
  find_package(OneDNN 2.5 QUIET)
  if(OneDNN_FOUND)
    set(APOGEE_HAS_ONEDNN ON)
    set(APOGEE_ONEDNN_TEXT "on (${OneDNN_VERSION})")
  elseif(APOGEE_WITH_ONEDNN STREQUAL "ON")
    message(FATAL_ERROR "APOGEE_WITH_ONEDNN=ON: oneDNN was not found; install libdnnl-dev, or set dnnl_ROOT")
  else()
    set(APOGEE_ONEDNN_TEXT "not found (libdnnl-dev): products through Eigen")
  endif()
endif()

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

# The library is loaded at run time and its interface declared by us (comm/nccl/abi.h), so that AUTO needs
# nothing here; ON demands nccl.h, which these declarations are then compared with.
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

# No source of this version uses it, so AUTO does not spend time on looking for it.
set(APOGEE_HAS_CUDA OFF)
set(APOGEE_CUDA_TEXT "off")
if(APOGEE_WITH_CUDA STREQUAL "AUTO")
  set(APOGEE_CUDA_TEXT "off (no source uses it yet)")
elseif(APOGEE_WITH_CUDA STREQUAL "ON")
  message(FATAL_ERROR "APOGEE_WITH_CUDA=ON: CUDA support is not built in this version of apogee; "
                      "configure with -DAPOGEE_WITH_CUDA=AUTO")
endif()
