# SPDX-License-Identifier: Apache-2.0
# Prices of runs against real runs.
apogee_test(NAME plan_dry_run_test SRCS plan/dry_run_test.cc LAYERS plan LABELS threads TIMEOUT 300)
apogee_test(NAME plan_plan_test SRCS plan/plan_test.cc LAYERS plan LABELS threads TIMEOUT 300
            LIBS nlohmann_json::nlohmann_json)
apogee_test(NAME plan_machine_test SRCS plan/machine_test.cc LAYERS plan LABELS threads TIMEOUT 300)
apogee_test(NAME plan_times_test SRCS plan/times_test.cc LAYERS plan LABELS threads TIMEOUT 300)
if(TARGET apogee_command)
  add_test(NAME matrix_memory COMMAND apogee_command matrix --memory --sample 100 --jobs 2)
  set(limit 300)
  apogee_time_limit(limit)
  set_tests_properties(matrix_memory PROPERTIES TIMEOUT ${limit} ENVIRONMENT "OMP_WAIT_POLICY=passive")
endif()
