# SPDX-License-Identifier: Apache-2.0
# Finds utf8proc and defines Utf8proc::utf8proc.
#
# Debian's package has a file for pkg-config but none for CMake. Header and library are looked up directly, so a
# build does not need pkg-config. Honours Utf8proc_ROOT and CMAKE_PREFIX_PATH. For the static library set
# Utf8proc_LIBRARY to libutf8proc.a.
find_path(Utf8proc_INCLUDE_DIR utf8proc.h)
find_library(Utf8proc_LIBRARY utf8proc)

if(Utf8proc_INCLUDE_DIR)
  file(STRINGS ${Utf8proc_INCLUDE_DIR}/utf8proc.h lines REGEX "#define UTF8PROC_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "UTF8PROC" "" lines "${lines}")
  string(REGEX REPLACE "[^0-9;]" "" Utf8proc_VERSION "${lines}")
  list(JOIN Utf8proc_VERSION "." Utf8proc_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Utf8proc REQUIRED_VARS Utf8proc_LIBRARY Utf8proc_INCLUDE_DIR
                                  VERSION_VAR Utf8proc_VERSION)
mark_as_advanced(Utf8proc_INCLUDE_DIR Utf8proc_LIBRARY)

if(Utf8proc_FOUND AND NOT TARGET Utf8proc::utf8proc)
  add_library(Utf8proc::utf8proc UNKNOWN IMPORTED)
  set_target_properties(Utf8proc::utf8proc PROPERTIES IMPORTED_LOCATION ${Utf8proc_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${Utf8proc_INCLUDE_DIR})
endif()
