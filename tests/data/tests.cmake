# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME data_test SRCS data/data_test.cc LAYERS data)
apogee_test(NAME data_token_files_test SRCS data/token_files_test.cc LAYERS data)
apogee_test(NAME data_token_writer_test SRCS data/token_writer_test.cc LAYERS data)
apogee_test(NAME data_bpe_test SRCS data/bpe_test.cc LAYERS data)
apogee_test(NAME data_unicode_test SRCS data/unicode_test.cc LAYERS data)
apogee_test(NAME data_tokenizer_json_test SRCS data/tokenizer_json_test.cc LAYERS data)
