# SPDX-License-Identifier: Apache-2.0
# Prices of runs against real runs.
apogee_test(NAME plan_dry_run_test SRCS plan/dry_run_test.cc LAYERS plan LABELS threads TIMEOUT 300)
apogee_test(NAME plan_plan_test SRCS plan/plan_test.cc LAYERS plan LABELS threads TIMEOUT 300
            LIBS nlohmann_json::nlohmann_json)
apogee_test(NAME plan_machine_test SRCS plan/machine_test.cc LAYERS plan LABELS threads TIMEOUT 300)
apogee_test(NAME plan_times_test SRCS plan/times_test.cc LAYERS plan LABELS threads TIMEOUT 300)
if(TARGET apogee_command)
  apogee_matrix_test(matrix_memory --memory --sample 100 --jobs 2)
endif()
