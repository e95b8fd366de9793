# SPDX-License-Identifier: Apache-2.0
# Finds oneDNN and defines DNNL::dnnl, the name that its own package uses.
#
# Debian's dnnl-config.cmake fails unless the OpenCL development files are installed, which a CPU build does
# not need. So header and library are looked up directly. Honours dnnl_ROOT and CMAKE_PREFIX_PATH.
find_path(OneDNN_INCLUDE_DIR dnnl.hpp HINTS ${dnnl_ROOT} PATH_SUFFIXES include)
find_library(OneDNN_LIBRARY dnnl HINTS ${dnnl_ROOT} PATH_SUFFIXES lib)

if(OneDNN_INCLUDE_DIR AND EXISTS ${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h)
  file(STRINGS ${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h lines
       REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" OneDNN_VERSION "${lines}")
  list(JOIN OneDNN_VERSION "." OneDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR
                                  VERSION_VAR OneDNN_VERSION)
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)

if(OneDNN_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${OneDNN_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${OneDNN_INCLUDE_DIR})
endif()
