# SPDX-License-Identifier: Apache-2.0
apogee_test(NAME data_test SRCS data/data_test.cc LAYERS data)
apogee_test(NAME data_token_files_test SRCS data/token_files_test.cc LAYERS data)
apogee_test(NAME data_token_writer_test SRCS data/token_writer_test.cc LAYERS data)
foreach(subject loader mixture order)
  apogee_test(NAME data_${subject}_test SRCS data/${subject}_test.cc LAYERS data LABELS threads)
endforeach()
apogee_test(NAME data_token_dataset_test SRCS data/token_dataset_test.cc LAYERS data nn)
apogee_test(NAME data_instructions_test SRCS data/instructions_test.cc LAYERS data nn)
apogee_test(NAME data_bpe_test SRCS data/bpe_test.cc LAYERS data)
apogee_test(NAME data_unicode_test SRCS data/unicode_test.cc LAYERS data)
apogee_test(NAME data_tokenizer_json_test SRCS data/tokenizer_json_test.cc LAYERS data)
# Ids against Hugging Face's library, on a little text, where Python has it.
find_program(APOGEE_PYTHON3 python3)
if(TARGET tokenizer_bench AND APOGEE_PYTHON3 AND APOGEE_HAS_UTF8PROC)
  set(recorded ${PROJECT_SOURCE_DIR}/tests/golden/tokenizers)
  add_test(NAME data_compare_tokenizers
           COMMAND ${APOGEE_PYTHON3} ${PROJECT_SOURCE_DIR}/scripts/compare_tokenizers.py --or-skip --megabytes 1
                   --repeat 1 $<TARGET_FILE:tokenizer_bench> ${recorded}/gpt2/tokenizer.json
                   ${recorded}/llama3/tokenizer.json ${recorded}/qwen2/tokenizer.json)
else()
  apogee_skipped_test(data_compare_tokenizers bench)
endif()
