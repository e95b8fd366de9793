# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME layout_test SRCS layout/layout_test.cc LAYERS layout)
