// SPDX-License-Identifier: Apache-2.0

// MPI's own collectives over the processes that mpirun started, for compare_comm.py and
// compare_collectives.py: the time per call in f32, as one JSON line from rank 0.
//
//   mpirun -np 4 mpi_collectives all_reduce 1024 67108864       # bytes of the whole tensor
//   {"ranks": 4, "op": "all_reduce", "us": {"1024": 5.2, "67108864": 30211.0}}
//
// collectives_bench measures ours in the same way: after a barrier, calls back to back for about a
// fifth of a second; the median of several such rounds.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kRounds = 7;
constexpr double kRoundSeconds = 0.2;

struct Buffers {
  std::vector<float> whole, part;
};

void Call(const std::string& op, Buffers& b) {
  const int whole = static_cast<int>(b.whole.size()), part = static_cast<int>(b.part.size());
  if (op == "all_reduce") {
    MPI_Allreduce(MPI_IN_PLACE, b.whole.data(), whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (op == "reduce_scatter") {
    MPI_Reduce_scatter_block(b.whole.data(), b.part.data(), part, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
  } else {
    MPI_Allgather(b.part.data(), part, MPI_FLOAT, b.whole.data(), part, MPI_FLOAT, MPI_COMM_WORLD);
  }
}

double SecondsOf(const std::string& op, Buffers& b, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < calls; ++i) Call(op, b);
  MPI_Barrier(MPI_COMM_WORLD);
  return MPI_Wtime() - start;
}

// Microseconds per call.
double Measure(const std::string& op, size_t bytes, int size) {
  Buffers b;
  b.part.assign(std::max<size_t>(1, bytes / 4 / static_cast<size_t>(size)), 0.0f);
  b.whole.assign(b.part.size() * static_cast<size_t>(size), 0.0f);
  SecondsOf(op, b, 1);
  double once = SecondsOf(op, b, 3) / 3;
  MPI_Bcast(&once, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  const int calls = std::clamp(static_cast<int>(kRoundSeconds / once), 1, 20000);
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) seconds.push_back(SecondsOf(op, b, calls) / calls);
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2] * 1e6;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::string op = argc > 1 ? argv[1] : "";
  bool usable = argc > 2 && (op == "all_reduce" || op == "reduce_scatter" || op == "all_gather");
  std::vector<long long> bytes;
  for (int i = 2; i < argc; ++i) {
    bytes.push_back(std::atoll(argv[i]));
    usable = usable && bytes.back() >= 4 && bytes.back() <= (1ll << 32);
  }
  if (!usable) {
    if (rank == 0) {
      std::fprintf(stderr,
                   "usage: mpi_collectives all_reduce|reduce_scatter|all_gather BYTES..., BYTES "
                   "from 4 to 4294967296\n");
    }
    MPI_Finalize();
    return 2;
  }
  std::string line;
  for (const long long n : bytes) {
    char text[64];
    std::snprintf(text, sizeof(text), "%s\"%lld\": %.3f", line.empty() ? "" : ", ", n,
                  Measure(op, static_cast<size_t>(n), size));
    line += text;
  }
  if (rank == 0) {
    std::printf("{\"ranks\": %d, \"op\": \"%s\", \"us\": {%s}}\n", size, op.c_str(), line.c_str());
  }
  MPI_Finalize();
  return 0;
}
