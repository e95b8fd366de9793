# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME data_test SRCS data/data_test.cc LAYERS data)
