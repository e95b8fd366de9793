# SPDX-License-Identifier: Apache-2.0
# A pairwise sample of the matrix.
apogee_test(NAME matrix_catalog_test SRCS matrix/catalog_test.cc LAYERS matrix LABELS threads TIMEOUT 300)
apogee_test(NAME matrix_ignored_test SRCS matrix/ignored_test.cc LAYERS booster
            LIBS apogee_matrix nlohmann_json::nlohmann_json TIMEOUT 300)
apogee_test(NAME matrix_sabotage_test SRCS matrix/sabotage_test.cc LAYERS booster LIBS apogee_matrix
            TIMEOUT 300)
apogee_test(NAME matrix_test SRCS matrix/matrix_test.cc LAYERS booster
            LIBS apogee_matrix nlohmann_json::nlohmann_json TIMEOUT 300)
set(limit 300)
apogee_time_limit(limit)
if(TARGET apogee_command)
  add_test(NAME matrix_sabotage COMMAND apogee_command matrix --only "[a]damw/zero2/world2/f32/acc1/fed"
                                        --sabotage no_update)
  set_tests_properties(matrix_sabotage PROPERTIES PASS_REGULAR_EXPRESSION "0 passed, 1 failed\n$")
  add_test(NAME matrix_exit_status COMMAND apogee_command matrix --only "[a]damw/zero2/world2/f32/acc1/fed"
                                           --sabotage no_update)
  set_tests_properties(matrix_exit_status PROPERTIES WILL_FAIL TRUE)
  set(cells 250)
  if(APOGEE_SANITIZE)  # a cell takes ten times as long
    set(cells 60)
  endif()
  foreach(optimizers a-b c-k l-r s-z)
    apogee_matrix_test(matrix_${optimizers} --sample ${cells} --only "[${optimizers}]*")
  endforeach()
  # Every Hugging Face family in products of layouts. scripts/matrix_full.sh runs the families' other cells.
  foreach(layout zero2/world3 hybrid_tp2_zero2 hybrid_pp2_tp2_interleaved_zero1 gemini_sp2_split_gather_tp2)
    string(REGEX REPLACE "/.*" "" name "${layout}")
    apogee_matrix_test(matrix_families_${name} --only "adamw/${layout}/*/hf_*")
  endforeach()
  # Adapters in every layout.
  apogee_matrix_test(matrix_lora --only "adamw/*/lora*")
  # Heads in chunks, and recomputed activations, in every kind of layout.
  apogee_matrix_test(matrix_chunked --only "adamw/*_chunked")
  # The same with processes for ranks.
  if(APOGEE_HAS_MPI)
    set(matrix ${mpirun} ${MPIEXEC_EXECUTABLE} 4 $<TARGET_FILE:apogee_command> matrix)
    add_test(NAME matrix_mpi COMMAND ${matrix} --sample 25)
    add_test(NAME matrix_mpi_sabotage COMMAND ${matrix} --only "[a]damw/ddp/world4/f32/acc1/fed"
                                              --sabotage drop_collective)
    set_tests_properties(matrix_mpi_sabotage PROPERTIES PASS_REGULAR_EXPRESSION
                         "ranks end with different values of .*0 passed, 1 failed\n")
    apogee_note_test(matrix_mpi_sabotage apogee_command)
    add_test(NAME matrix_mpi_exit_status COMMAND ${matrix} --only "[a]damw/zero2/world3/f32/acc1/fed"
                                                 --sabotage no_update)
    set_tests_properties(matrix_mpi_exit_status PROPERTIES WILL_FAIL TRUE)
    set_tests_properties(matrix_mpi matrix_mpi_sabotage matrix_mpi_exit_status PROPERTIES
                         TIMEOUT ${limit} LABELS mpi ENVIRONMENT "OMP_WAIT_POLICY=passive")
  else()
    foreach(name matrix_mpi matrix_mpi_sabotage matrix_mpi_exit_status)
      apogee_skipped_test(${name} mpi)
    endforeach()
  endif()
  add_test(NAME matrix_tcp COMMAND apogee_command run -n 4 $<TARGET_FILE:apogee_command> matrix --sample 25)
  set_tests_properties(matrix_tcp PROPERTIES TIMEOUT ${limit} LABELS tcp ENVIRONMENT "OMP_WAIT_POLICY=passive")
endif()
