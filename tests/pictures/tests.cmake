# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME pictures_shard_map_test SRCS pictures/shard_map_test.cc LAYERS booster LABELS threads TIMEOUT 300)
