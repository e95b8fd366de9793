# SPDX-License-Identifier: Apache-2.0
# Finds libsodium and defines Sodium::sodium.
#
# libsodium comes with a file for pkg-config but none for CMake. Header and library are looked up directly, so a
# build does not need pkg-config. Honours Sodium_ROOT and CMAKE_PREFIX_PATH. For the static library set
# Sodium_LIBRARY to libsodium.a.
find_path(Sodium_INCLUDE_DIR sodium.h)
find_library(Sodium_LIBRARY sodium)

if(Sodium_INCLUDE_DIR AND EXISTS ${Sodium_INCLUDE_DIR}/sodium/version.h)
  file(STRINGS ${Sodium_INCLUDE_DIR}/sodium/version.h line REGEX "#define SODIUM_VERSION_STRING ")
  string(REGEX REPLACE "[^0-9.]" "" Sodium_VERSION "${line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Sodium REQUIRED_VARS Sodium_LIBRARY Sodium_INCLUDE_DIR
                                  VERSION_VAR Sodium_VERSION)
mark_as_advanced(Sodium_INCLUDE_DIR Sodium_LIBRARY)

if(Sodium_FOUND AND NOT TARGET Sodium::sodium)
  add_library(Sodium::sodium UNKNOWN IMPORTED)
  set_target_properties(Sodium::sodium PROPERTIES IMPORTED_LOCATION ${Sodium_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${Sodium_INCLUDE_DIR})
endif()
