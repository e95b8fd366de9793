# SPDX-License-Identifier: Apache-2.0
# add_layer declares one top-level folder: its sources, its headers and the layers it may include. So the
# CMakeLists.txt of the folders define the layering, and tests/layer_check.cmake checks all includes
# against it.
#
#   add_layer(NAME tensor
#             SRCS tensor.cc ops/matmul.cc cpu/products/matmul.cc   # relative to the folder
#             HDRS tensor.h ops/matmul.h                   # public: installed under include/apogee/tensor/
#             CUDA_HDRS cuda/device/launch.cuh             # installed for .cu files of users
#             DEPS core                                    # layers; their own dependencies are added
#             PUBLIC_LIBS absl::status                     # seen in our headers
#             PRIVATE_LIBS DNNL::dnnl                      # linked, not seen in our headers
#             BUILD_LIBS Eigen3::Eigen)                    # header-only and not seen: users don't need it
#
# makes the library apogee_tensor, alias apogee::tensor; shared if BUILD_SHARED_LIBS. HDRS are for users and for authors
# of extensions: a public header includes only public ones, and driver/apogee.h includes them all (public_check.sh).

function(add_layer)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SRCS;HDRS;CUDA_HDRS;DEPS;PUBLIC_LIBS;PRIVATE_LIBS;BUILD_LIBS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME)
    message(FATAL_ERROR "add_layer(${arg_NAME}): unexpected arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  apogee_declare_folder(${arg_NAME} DEPS ${arg_DEPS})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})

  set(target apogee_${arg_NAME})
  add_library(${target} ${arg_SRCS})
  # A unity build compiles kernels one by one, too: their time goes into optimising, not into reading headers.
  # They are optimised in full even if a build asks for less (quickstart, check_install).
  set(kernels ${arg_SRCS})
  list(FILTER kernels INCLUDE REGEX "(^|/)cpu/|tree_reduce|/shares")
  if(kernels)
    set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set_property(SOURCE ${kernels} APPEND PROPERTY COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
    if(NOT CMAKE_CXX_FLAGS_RELEASE MATCHES "-O3")
      # g++ 12 crashes if a precompiled header was made with another level of optimisation.
      set_source_files_properties(${kernels} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endif()
  add_library(apogee::${arg_NAME} ALIAS ${target})
  # Without a symbol of its own, a shared layer can use the precompiled header of core.
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${arg_NAME} LINKER_LANGUAGE CXX DEFINE_SYMBOL "")
  if(BUILD_SHARED_LIBS)
    apogee_shared_layer(${target})
  endif()
  set(public_headers ${arg_HDRS})
  list(TRANSFORM public_headers PREPEND ${folder}/)
  set_property(GLOBAL APPEND PROPERTY APOGEE_PUBLIC_HEADERS ${public_headers})
  list(APPEND arg_HDRS ${arg_CUDA_HDRS})
  list(TRANSFORM arg_HDRS PREPEND ${APOGEE_INCLUDE_ROOT}/apogee/${folder}/)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${APOGEE_INCLUDE_ROOT} FILES ${arg_HDRS})
  apogee_target_flags(${target})
  apogee_precompile(${target} FROM apogee_core HEADERS ${APOGEE_PCH_HEADERS})

  foreach(dep IN LISTS arg_DEPS)
    # A layer without sources in this version has no target, but may be declared as a dependency.
    if(TARGET apogee_${dep})
      target_link_libraries(${target} PUBLIC apogee_${dep})
    endif()
  endforeach()
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC_LIBS} PRIVATE ${arg_PRIVATE_LIBS})
  foreach(lib IN LISTS arg_BUILD_LIBS)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${lib}>)
  endforeach()
  set(abseil ${arg_PUBLIC_LIBS} ${arg_PRIVATE_LIBS})
  list(FILTER abseil INCLUDE REGEX "^absl::")
  set_property(GLOBAL APPEND PROPERTY APOGEE_ABSEIL_LIBS ${abseil})  # for apogee.pc
  set_property(GLOBAL APPEND PROPERTY APOGEE_BUILT_LAYERS ${arg_NAME})
endfunction()

# Before 1.0 a minor version may break code, so it is part of the SONAME. Only names that mention our namespace are
# exported, so that no program sees the parts of other libraries that our sources instantiate. The GPU in software
# has a namespace of its own.
function(apogee_shared_layer target)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION}
                                             SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  if(NOT CMAKE_INSTALL_RPATH)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
  endif()
  if(UNIX AND NOT APPLE AND NOT APOGEE_WITH_CUDA STREQUAL "EMULATED")
    set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    target_link_options(${target} PRIVATE -Wl,--no-undefined -Wl,--version-script=${exports})
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${exports})
  endif()
endfunction()

# Links the current folder into the include root and records what it may include.
function(apogee_declare_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPS")
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  list(FIND APOGEE_LAYERS ${name} own)
  get_property(declared GLOBAL PROPERTY APOGEE_LAYER_TABLE)
  list(TRANSFORM declared REPLACE "[|].*$" "")
  foreach(dep IN LISTS arg_DEPS)
    list(FIND APOGEE_LAYERS ${dep} index)
    if(own EQUAL -1 AND dep IN_LIST declared)  # tests use what a program is made of
      continue()
    endif()
    if(index EQUAL -1 OR (own GREATER -1 AND index GREATER_EQUAL own))
      message(FATAL_ERROR "layer ${name} may not depend on '${dep}': dependencies are layers listed "
                          "before it: ${APOGEE_LAYERS}")
    endif()
  endforeach()
  if(NOT folder MATCHES "/")  # nn/parallel is reached through the link of nn
    file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${APOGEE_INCLUDE_ROOT}/apogee/${folder} SYMBOLIC)
  endif()
  list(JOIN arg_DEPS " " deps)
  set_property(GLOBAL APPEND PROPERTY APOGEE_LAYER_TABLE "${name}|${folder}|${deps}")
endfunction()

# <build>/layers.txt: one line `name|folder|dep dep` per declared folder, for the layer check.
# <build>/public_headers.txt: the headers that are installed, for public_check.sh.
function(apogee_write_layer_table)
  get_property(table GLOBAL PROPERTY APOGEE_LAYER_TABLE)
  list(JOIN table "\n" text)
  file(WRITE ${PROJECT_BINARY_DIR}/layers.txt "${text}\n")
  get_property(headers GLOBAL PROPERTY APOGEE_PUBLIC_HEADERS)
  list(JOIN headers "\n" text)
  file(WRITE ${PROJECT_BINARY_DIR}/public_headers.txt "${text}\n")
endfunction()

# An executable of tools/, examples/ or bench/:
#   apogee_program(NAME 01_train_gpt SRCS main.cc LAYERS booster LIBS CLI11::CLI11)
# LAYERS defaults to every layer that is built.
function(apogee_program)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SRCS;LAYERS;LIBS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SRCS)
    message(FATAL_ERROR "apogee_program(${arg_NAME}): expected NAME, SRCS, LAYERS, LIBS")
  endif()
  if(NOT arg_LAYERS)
    get_property(arg_LAYERS GLOBAL PROPERTY APOGEE_BUILT_LAYERS)
  endif()
  add_executable(${arg_NAME} ${arg_SRCS})
  apogee_target_flags(${arg_NAME})
  target_include_directories(${arg_NAME} PRIVATE ${APOGEE_INCLUDE_ROOT})
  if("CLI11::CLI11" IN_LIST arg_LIBS)
    apogee_command_line(${arg_NAME})
  endif()
  list(TRANSFORM arg_LAYERS PREPEND apogee_)
  target_link_libraries(${arg_NAME} PRIVATE ${arg_LAYERS} ${arg_LIBS})
endfunction()

# For targets that include CLI11: optimising its parser takes a third of the time to compile them, and their own
# loops only call the libraries.
function(apogee_command_line target)
  target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O1>")
endfunction()
