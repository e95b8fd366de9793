# SPDX-License-Identifier: Apache-2.0
# Debian packages by CPack (scripts/package.sh):
#
#   libapogee0.2     the shared libraries, if BUILD_SHARED_LIBS
#   libapogee-dev    headers, CMake and pkg-config files; static libraries, or the links to the shared ones
#   apogee           the command, its man pages and completion, if APOGEE_BUILD_TOOLS
#
# Programs find their libraries through dpkg-shlibdeps. libapogee-dev depends on the -dev packages that a program's
# own link needs.
set(version ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(CPACK_PACKAGE_NAME apogee)
set(CPACK_PACKAGE_CONTACT "the authors of Apogee <maintainers@users.noreply.a-seed-413a6ac2.example>")
set(CPACK_PACKAGE_VENDOR Apogee)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_COMPONENTS_ALL development)

set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Headers and libraries to compile programs with Apogee.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libapogee-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)  # it has no programs
set(depends libabsl-dev)
set(debian_SODIUM libsodium-dev)
set(debian_ONEDNN libdnnl-dev)
set(debian_UTF8PROC libutf8proc-dev)
set(debian_SENTENCEPIECE libsentencepiece-dev)
set(debian_MPI libopenmpi-dev)
foreach(x IN ITEMS SODIUM ONEDNN UTF8PROC SENTENCEPIECE MPI)
  if(APOGEE_LINKS_${x})
    list(APPEND depends ${debian_${x}})
  endif()
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/libapogee-dev RENAME copyright COMPONENT development)

if(BUILD_SHARED_LIBS)
  list(APPEND CPACK_COMPONENTS_ALL runtime)
  set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "The shared libraries of Apogee.")
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libapogee${version})
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
  list(APPEND depends "libapogee${version} (= ${PROJECT_VERSION})")
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/libapogee${version} RENAME copyright
          COMPONENT runtime)
endif()
list(JOIN depends ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)

if(APOGEE_BUILD_TOOLS)
  list(APPEND CPACK_COMPONENTS_ALL tools)
  set(CPACK_COMPONENT_TOOLS_DESCRIPTION "The apogee command: plans, starts, checks and compares runs.")
  set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME apogee)
  set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
  if(BUILD_SHARED_LIBS)
    set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libapogee${version} (= ${PROJECT_VERSION})")
    # dpkg-shlibdeps looks for our own libraries here.
    get_property(built GLOBAL PROPERTY APOGEE_BUILT_LAYERS)
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS)
    foreach(layer IN LISTS built)
      get_target_property(folder apogee_${layer} BINARY_DIR)
      list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${folder})
    endforeach()
  endif()
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/apogee RENAME copyright COMPONENT tools)
endif()
include(CPack)
