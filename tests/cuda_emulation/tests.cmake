# SPDX-License-Identifier: Apache-2.0
if(APOGEE_WITH_CUDA STREQUAL "EMULATED")
  target_compile_definitions(tensor_cuda_context_test PRIVATE APOGEE_EMULATED_CUDA=1)
  apogee_test(NAME cuda_emulation_test SRCS cuda_emulation/emulation_test.cc LAYERS tensor
              LIBS apogee_cuda_emulation LABELS cuda)
  foreach(subject refused_products small_gpu)
    apogee_test(NAME cuda_${subject}_test SRCS cuda_emulation/${subject}_test.cc LAYERS tensor
                LIBS apogee_cuda_emulation LABELS cuda)
  endforeach()
  if(APOGEE_EMULATED_RACES)
    apogee_test(ALONE NAME cuda_emulation_races_test SRCS cuda_emulation/races_test.cc LAYERS tensor LABELS cuda)
    apogee_cuda_sources(cuda_emulation_races_test SRCS cuda_emulation/race_kernels.cu)
  endif()
endif()
