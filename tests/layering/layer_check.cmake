# SPDX-License-Identifier: Apache-2.0
# Fails when a source includes a layer that its folder did not declare, or a library that must stay
# hidden. Needs nothing but CMake:
#
#   cmake -DROOT=<source tree> -DLAYERS=<build>/layers.txt -P tests/layering/layer_check.cmake
#
# layers.txt has one line `name|folder|dep dep` per declared folder, lowest layer first.

cmake_minimum_required(VERSION 3.25)

file(STRINGS ${LAYERS} lines)
set(names)
foreach(line IN LISTS lines)
  string(REGEX MATCH "^([^|]*)[|]([^|]*)[|](.*)$" _ "${line}")
  set(name ${CMAKE_MATCH_1})
  set(folder ${CMAKE_MATCH_2})
  string(REPLACE " " ";" deps "${CMAKE_MATCH_3}")
  list(APPEND names ${name})
  set(folder_${name} ${folder})
  set(allowed_${name} ${name})
  foreach(dep IN LISTS deps)
    # A dependency without a line has no sources in this version.
    list(APPEND allowed_${name} ${dep} ${allowed_${dep}})
  endforeach()
  list(REMOVE_DUPLICATES allowed_${name})
endforeach()

# The layer of a path like nn/parallel/linear.h: the declared folder with the longest matching prefix.
function(layer_of path result)
  set(best "")
  set(best_length 0)
  foreach(name IN LISTS names)
    string(LENGTH "${folder_${name}}/" length)
    string(FIND "${path}" "${folder_${name}}/" position)
    if(position EQUAL 0 AND length GREATER best_length)
      set(best ${name})
      set(best_length ${length})
    endif()
  endforeach()
  set(${result} "${best}" PARENT_SCOPE)
endfunction()

set(hidden "Eigen/|unsupported/Eigen/|dnnl|oneapi/|cuda|cublas|curand|nccl|mpi[.]h")
set(errors)
set(num_files 0)
foreach(name IN LISTS names)
  file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/${folder_${name}}/*.h ${ROOT}/${folder_${name}}/*.cc
       ${ROOT}/${folder_${name}}/*.cu ${ROOT}/${folder_${name}}/*.cuh)
  foreach(file IN LISTS files)
    layer_of(${file} owner)
    # The consumer, the outside app and the MPI yardstick are programs that use nothing of the library's sources.
    if(NOT owner STREQUAL name OR file MATCHES "^(tests/(consumer|outside_app)/|bench/mpi_collectives[.]cc$)")
      continue()
    endif()
    math(EXPR num_files "${num_files} + 1")
    file(STRINGS ${ROOT}/${file} includes REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"]")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE "^[^<\"]*([<\"])([^>\"]*).*$" "\\1\\2" include "${include}")
      string(SUBSTRING "${include}" 0 1 quote)
      string(SUBSTRING "${include}" 1 -1 path)
      if(path STREQUAL "apogee/apogee.h")
        if(NOT name MATCHES "^(tools|examples|bench|tests)$")
          list(APPEND errors "${file}: includes the umbrella header; name the headers that it uses")
        endif()
      elseif(path MATCHES "^apogee/(.*)$")
        layer_of(${CMAKE_MATCH_1} target)
        if(target STREQUAL "")
          list(APPEND errors "${file}: includes ${path}, which is in no declared layer")
        elseif(NOT target IN_LIST allowed_${name})
          list(APPEND errors "${file}: includes ${path}, but ${folder_${name}}/ may include only: ${allowed_${name}}")
        endif()
      elseif(quote STREQUAL "\"" AND EXISTS ${ROOT}/${folder_${name}}/${path})
        list(APPEND errors "${file}: write \"apogee/${folder_${name}}/${path}\" instead of \"${path}\"")
      endif()
      # A .cuh is a private header that only such sources include.
      set(backends "^(tensor/(cpu|cuda)|optim/cuda|comm/(cuda|mpi|nccl))/.*[.](cc|cu|cuh)$|^tests/cuda_emulation/")
      if(path MATCHES "^(${hidden})" AND NOT file MATCHES "${backends}")
        list(APPEND errors "${file}: includes ${path}; such headers belong in the sources (never the "
                           "headers) of tensor/cpu, tensor/cuda, optim/cuda, comm/cuda, comm/mpi or comm/nccl")
      endif()
    endforeach()
  endforeach()
endforeach()

if(num_files EQUAL 0)
  message(FATAL_ERROR "layer check: no source found below ${ROOT}")
endif()
if(errors)
  list(JOIN errors "\n  " text)
  message(FATAL_ERROR "layer check:\n  ${text}")
endif()
message(STATUS "layer check: ${num_files} files follow the layering")
