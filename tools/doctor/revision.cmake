# SPDX-License-Identifier: Apache-2.0
# Writes the revision of the sources to a header, whose time changes only when the revision does:
#
#   cmake -DSOURCE=DIR -DOUTPUT=apogee_doctor_revision.h -P revision.cmake
cmake_minimum_required(VERSION 3.25)
set(revision "unknown")
find_program(git git)
# Not that of another project into whose repository these sources were copied.
if(git AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${git} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed EQUAL 0)
    set(revision "${found}")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define APOGEE_DOCTOR_REVISION \"@revision@\"\n" @ONLY)
