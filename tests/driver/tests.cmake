# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME driver_corpus_test SRCS driver/corpus_test.cc LAYERS driver)
apogee_test(NAME driver_peak_share_test SRCS driver/peak_share_test.cc LAYERS driver)
apogee_test(NAME driver_expert_picture_test SRCS driver/expert_picture_test.cc LAYERS driver)
apogee_test(NAME driver_flags_test SRCS driver/flags_test.cc LAYERS driver LABELS threads TIMEOUT 300)
