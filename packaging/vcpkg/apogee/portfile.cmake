# SPDX-License-Identifier: Apache-2.0
# A vcpkg port of the checkout that it is part of:
#
#   vcpkg install apogee --overlay-ports=packaging/vcpkg
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

set(options)
foreach(feature IN ITEMS cuda mpi onednn sentencepiece utf8proc)
  string(TOUPPER "${feature}" option)
  set(value OFF)
  if(feature IN_LIST FEATURES)
    set(value ON)
  endif()
  list(APPEND options "-DAPOGEE_WITH_${option}=${value}")
endforeach()
vcpkg_check_features(OUT_FEATURE_OPTIONS tools FEATURES tools APOGEE_BUILD_TOOLS)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
                      OPTIONS ${options} ${tools} -DAPOGEE_BUILD_TESTS=OFF -DAPOGEE_BUILD_EXAMPLES=OFF
                              -DAPOGEE_UNITY=ON)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME apogee CONFIG_PATH lib/cmake/apogee)
vcpkg_fixup_pkgconfig()
if("tools" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES apogee AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
