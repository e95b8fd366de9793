# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME data_test SRCS data/data_test.cc LAYERS data)
apogee_test(NAME data_token_files_test SRCS data/token_files_test.cc LAYERS data)
apogee_test(NAME data_token_writer_test SRCS data/token_writer_test.cc LAYERS data)
foreach(subject loader mixture order)
  apogee_test(NAME data_${subject}_test SRCS data/${subject}_test.cc LAYERS data LABELS threads)
endforeach()
apogee_test(NAME data_token_dataset_test SRCS data/token_dataset_test.cc LAYERS data nn)
