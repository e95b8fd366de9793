# SPDX-License-Identifier: Apache-2.0
# The target apogee::apogee (every layer), `cmake --install`, find_package(apogee) and pkg-config. The
# installed tree may be moved: no file in it holds an absolute path.
include(CMakePackageConfigHelpers)

get_property(built GLOBAL PROPERTY APOGEE_BUILT_LAYERS)
list(TRANSFORM built PREPEND apogee_ OUTPUT_VARIABLE layer_targets)

add_library(apogee INTERFACE)
add_library(apogee::apogee ALIAS apogee)
target_link_libraries(apogee INTERFACE ${layer_targets})
if(EXISTS ${PROJECT_SOURCE_DIR}/driver/apogee.h)
  # The umbrella header is in the folder of the top layer but is included as "apogee/apogee.h". It is copied,
  # because a link would be installed as a link.
  configure_file(${PROJECT_SOURCE_DIR}/driver/apogee.h ${APOGEE_INCLUDE_ROOT}/apogee/apogee.h COPYONLY)
  target_sources(apogee INTERFACE FILE_SET HEADERS BASE_DIRS ${APOGEE_INCLUDE_ROOT}
                                  FILES ${APOGEE_INCLUDE_ROOT}/apogee/apogee.h)
else()
  target_sources(apogee INTERFACE FILE_SET HEADERS BASE_DIRS ${APOGEE_INCLUDE_ROOT})
endif()

# The GPU in software is for tests: such a build is not installed.
if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
  return()
endif()
# Packages for which apogee's own CMake modules look.
set(APOGEE_OWN_MODULES SODIUM ONEDNN UTF8PROC SENTENCEPIECE)
set(APOGEE_OWN_PACKAGES Sodium OneDNN Utf8proc SentencePiece)
# Programs must find the libraries that the layers link, unless the layers are shared.
foreach(x IN ITEMS ONEDNN UTF8PROC SENTENCEPIECE MPI CUDA SODIUM)
  set(APOGEE_LINKS_${x} OFF)
  if(APOGEE_HAS_${x} AND NOT BUILD_SHARED_LIBS)
    set(APOGEE_LINKS_${x} ON)
  endif()
endforeach()

# Components are packages (ApogeePackage.cmake).
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/apogee)
install(TARGETS apogee ${layer_targets} EXPORT apogeeTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(EXPORT apogeeTargets NAMESPACE apogee:: DESTINATION ${config_dir} COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/apogeeConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/apogeeConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
# Before 1.0 a minor version may break code that uses the library.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/apogeeConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/apogeeConfig.cmake ${PROJECT_BINARY_DIR}/apogeeConfigVersion.cmake
        DESTINATION ${config_dir} COMPONENT development)
foreach(x package IN ZIP_LISTS APOGEE_OWN_MODULES APOGEE_OWN_PACKAGES)
  if(APOGEE_LINKS_${x})
    install(FILES ${CMAKE_CURRENT_LIST_DIR}/Find${package}.cmake DESTINATION ${config_dir} COMPONENT development)
  endif()
endforeach()

# pkg-config. Static libraries are named highest layer first, because a linker reads them once.
list(REVERSE layer_targets)
list(TRANSFORM layer_targets PREPEND "-l" OUTPUT_VARIABLE pc_libs)
set(pc_cflags)
if(APOGEE_LINKS_ONEDNN)
  list(APPEND pc_libs -ldnnl)
endif()
if(APOGEE_LINKS_UTF8PROC)
  list(APPEND pc_libs -lutf8proc)
endif()
if(APOGEE_LINKS_SENTENCEPIECE)
  list(APPEND pc_libs -lsentencepiece)
endif()
if(APOGEE_LINKS_MPI)
  list(APPEND pc_libs ${MPI_CXX_LIBRARIES})
endif()
if(APOGEE_HAS_OPENMP)
  list(APPEND pc_libs ${OpenMP_CXX_FLAGS})
  set(pc_cflags ${OpenMP_CXX_FLAGS})
endif()
if(APOGEE_LINKS_CUDA)
  list(APPEND pc_libs -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl)
endif()
list(APPEND pc_libs -pthread)
get_property(pc_requires GLOBAL PROPERTY APOGEE_ABSEIL_LIBS)
list(REMOVE_DUPLICATES pc_requires)
list(TRANSFORM pc_requires REPLACE "^absl::" "absl_")
if(APOGEE_LINKS_SODIUM)
  list(APPEND pc_requires libsodium)
endif()
list(JOIN pc_requires " " pc_requires)
list(JOIN pc_libs " " pc_libs)
file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/apogee.pc.in ${PROJECT_BINARY_DIR}/apogee.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/apogee.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
