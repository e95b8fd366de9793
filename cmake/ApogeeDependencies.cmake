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

# No source of this version uses these, so AUTO does not spend time on looking for them.
foreach(name IN ITEMS CUDA NCCL)
  set(APOGEE_HAS_${name} OFF)
  set(APOGEE_${name}_TEXT "off")
  if(APOGEE_WITH_${name} STREQUAL "AUTO")
    set(APOGEE_${name}_TEXT "off (no source uses it yet)")
  elseif(APOGEE_WITH_${name} STREQUAL "ON")
    message(FATAL_ERROR "APOGEE_WITH_${name}=ON: ${name} support is not built in this version of apogee; "
                        "configure with -DAPOGEE_WITH_${name}=AUTO")
  endif()
endforeach()
