# SPDX-License-Identifier: Apache-2.0
# Writes the revision of the sources to a header. The header's time changes only if the revision
# does.
#
#   cmake -DSOURCE=DIR -DOUTPUT=apogee_doctor_revision.h -P revision.cmake
cmake_minimum_required(VERSION 3.25)
set(revision "unknown")
find_program(git git)
# Not the revision of another project that contains a copy of these sources.
if(git AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${git} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed EQUAL 0)
    set(revision "${found}")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define APOGEE_DOCTOR_REVISION \"@revision@\"\n" @ONLY)
