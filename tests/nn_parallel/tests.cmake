# SPDX-License-Identifier: Apache-2.0
foreach(subject convolution cut functions linear lora sequence vocab_parallel)
  apogee_test(NAME nn_parallel_${subject}_test SRCS nn_parallel/${subject}_test.cc LAYERS nn_parallel
              LABELS threads)
endforeach()
foreach(subject convolution cut functions linear lora sequence vocab_parallel)
  apogee_mpi_test(NAME nn_parallel_${subject}_mpi_test SRCS nn_parallel/${subject}_test.cc LAYERS nn_parallel)
endforeach()
apogee_test(NAME nn_parallel_shard_test SRCS nn_parallel/shard_test.cc LAYERS nn_parallel)
apogee_test(NAME nn_parallel_recurrent_test SRCS nn_parallel/recurrent_test.cc LAYERS nn_parallel LABELS threads)
apogee_mpi_test(NAME nn_parallel_recurrent_mpi_test SRCS nn_parallel/recurrent_test.cc LAYERS nn_parallel)
apogee_test(NAME nn_parallel_norm_test SRCS nn_parallel/norm_test.cc LAYERS nn_parallel LABELS threads)
apogee_mpi_test(NAME nn_parallel_norm_mpi_test SRCS nn_parallel/norm_test.cc LAYERS nn_parallel)
