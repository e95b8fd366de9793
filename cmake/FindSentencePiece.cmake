# SPDX-License-Identifier: Apache-2.0
# Finds SentencePiece and defines SentencePiece::sentencepiece.
#
# Debian's package has a file for pkg-config but none for CMake. Header and library are looked up directly, so a
# build does not need pkg-config. Honours SentencePiece_ROOT and CMAKE_PREFIX_PATH.
find_path(SentencePiece_INCLUDE_DIR sentencepiece_processor.h)
find_library(SentencePiece_LIBRARY sentencepiece)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SentencePiece REQUIRED_VARS SentencePiece_LIBRARY SentencePiece_INCLUDE_DIR)
mark_as_advanced(SentencePiece_INCLUDE_DIR SentencePiece_LIBRARY)

if(SentencePiece_FOUND AND NOT TARGET SentencePiece::sentencepiece)
  add_library(SentencePiece::sentencepiece UNKNOWN IMPORTED)
  set_target_properties(SentencePiece::sentencepiece PROPERTIES IMPORTED_LOCATION ${SentencePiece_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${SentencePiece_INCLUDE_DIR})
endif()
