# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME report_parts_test SRCS report/parts_test.cc LAYERS report)
apogee_test(NAME report_inline_svg_test SRCS report/inline_svg_test.cc LAYERS report)
apogee_test(NAME report_page_test SRCS report/page_test.cc LAYERS report)
