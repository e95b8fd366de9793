// MPI_Allreduce for compare_comm.py: the median time of an all-reduce in place over the processes that
// mpirun started, and one JSON line from rank 0.
//
//   mpirun -np 4 mpi_allreduce 64 15        # MiB of f32 per process, timed calls
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int mib = argc > 1 ? std::atoi(argv[1]) : 64;
  const int calls = argc > 2 ? std::atoi(argv[2]) : 15;
  if (mib < 1 || mib > 4096 || calls < 1) {
    if (rank == 0) std::fprintf(stderr, "usage: mpi_allreduce MIB CALLS, MIB from 1 to 4096\n");
    MPI_Finalize();
    return 2;
  }
  std::vector<float> x(static_cast<size_t>(mib) << 18, 0.0f);
  std::vector<double> seconds;
  for (int call = -2; call < calls; ++call) {  // the first two warm up
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (call >= 0) seconds.push_back(MPI_Wtime() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  if (rank == 0) {
    std::printf("{\"ranks\": %d, \"mib\": %d, \"all_reduce_ms\": %.3f}\n", size, mib,
                seconds[seconds.size() / 2] * 1e3);
  }
  MPI_Finalize();
  return 0;
}
