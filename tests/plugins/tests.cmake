# SPDX-License-Identifier: Apache-2.0
foreach(source batch_norm batch_norm_edge cut_outputs gemini/gemini_memory lazy_memory loop_mistakes gemini/module_chunks
               hybrid/hybrid_parallel_memory own_plan plugin_defaults precision step_events)
  get_filename_component(subject ${source} NAME)
  apogee_test(NAME plugins_${subject}_test SRCS plugins/${source}_test.cc LAYERS booster
              LABELS threads TIMEOUT 300)
endforeach()
foreach(subject memory outputs traffic)
  apogee_test(NAME plugins_pipeline_${subject}_test SRCS plugins/pipeline/pipeline_${subject}_test.cc
              LAYERS booster LIBS nlohmann_json::nlohmann_json LABELS threads TIMEOUT 300)
endforeach()
apogee_test(NAME plugins_registry_test SRCS plugins/registry_test.cc LAYERS booster LABELS threads)
apogee_test(NAME plugins_training_options_test SRCS plugins/training_options_test.cc LAYERS plugins)
foreach(subject schedule cut)
  apogee_test(NAME plugins_pipeline_${subject}_test SRCS plugins/pipeline/${subject}_test.cc LAYERS plugins)
endforeach()
apogee_test(NAME plugins_low_level_zero_memory_test SRCS plugins/low_level_zero_memory_test.cc
            LAYERS booster LABELS threads TIMEOUT 300)
# Runs to compare with come from the matrix.
apogee_test(NAME plugins_ddp_test SRCS plugins/ddp_test.cc LAYERS booster LIBS apogee_matrix LABELS threads)
apogee_test(NAME plugins_uneven_targets_test SRCS plugins/uneven_targets_test.cc LAYERS booster
            LIBS apogee_matrix LABELS threads)
apogee_test(NAME plugins_sample_places_test SRCS plugins/sample_places_test.cc LAYERS booster
            LIBS apogee_matrix LABELS threads)
apogee_mpi_test(NAME plugins_ddp_mpi_test SRCS plugins/ddp_test.cc LAYERS booster LIBS apogee_matrix
                TIMEOUT 600 TCP 4)
set(on_both hybrid/expert_balance hybrid/expert_parallel pipeline/pipeline pipeline/pipeline_errors gemini/gemini gemini/gemini_edge gemini/gemini_errors
            gemini/gemini_fused_edge hybrid/hybrid_gemini hybrid/hybrid_parallel hybrid/hybrid_parallel_errors
            hybrid/hybrid_parallel_loops hybrid/hybrid_parallel_parts hybrid/hybrid_parallel_plans
            hybrid/hybrid_sequence hybrid/hybrid_sequence_errors generate packed_documents)
foreach(source ${on_both} gemini/gemini_fused gemini/gemini_order gemini/gemini_placement lazy_values)
  get_filename_component(subject ${source} NAME)
  apogee_test(NAME plugins_${subject}_test SRCS plugins/${source}_test.cc LAYERS booster
              LIBS apogee_matrix LABELS threads TIMEOUT 300)
endforeach()
apogee_test(NAME plugins_onebit_ddp_test SRCS plugins/onebit_ddp_test.cc LAYERS booster LIBS apogee_matrix
            LABELS threads TIMEOUT 300)
apogee_test(NAME plugins_galore_distributed_test SRCS plugins/galore_distributed_test.cc LAYERS booster
            LIBS apogee_matrix LABELS threads TIMEOUT 900)
apogee_test(NAME plugins_low_level_zero_test SRCS plugins/low_level_zero_test.cc LAYERS booster
            LIBS apogee_matrix LABELS threads TIMEOUT 900)
apogee_test(NAME plugins_low_level_zero_edge_test SRCS plugins/low_level_zero_edge_test.cc LAYERS booster
            LIBS apogee_matrix LABELS threads)
apogee_test(NAME plugins_low_level_zero_errors_test SRCS plugins/low_level_zero_errors_test.cc
            LAYERS booster LIBS apogee_matrix LABELS threads)
foreach(source ${on_both} low_level_zero low_level_zero_edge low_level_zero_errors onebit_ddp)
  get_filename_component(subject ${source} NAME)
  apogee_mpi_test(NAME plugins_${subject}_mpi_test SRCS plugins/${source}_test.cc LAYERS booster
                  LIBS apogee_matrix TIMEOUT 600)
endforeach()
apogee_test(NAME plugins_hybrid_recurrent_test SRCS plugins/hybrid/hybrid_recurrent_test.cc LAYERS booster
            LIBS apogee_matrix LABELS threads TIMEOUT 300)
apogee_test(NAME plugins_hybrid_attention_test SRCS plugins/hybrid/hybrid_attention_test.cc LAYERS booster
            LIBS apogee_matrix LABELS threads TIMEOUT 300)
if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
  apogee_test(NAME plugins_odd_vocabulary_test SRCS plugins/hybrid/odd_vocabulary_test.cc LAYERS booster LABELS cuda)
endif()
