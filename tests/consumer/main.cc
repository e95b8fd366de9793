// Uses the installed headers and libraries, and nothing of the source tree.
#include <cstdio>
#include <vector>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/tensor.h"

int main() {
  const apogee::ContextPtr context = apogee::CpuContext({.num_threads = 2});
  const apogee::Tensor x = apogee::Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2}, context);
  const std::vector<float> values = x.Transpose(0, 1).ToVector<float>();
  std::printf("consumer: %s, transposed: %g %g %g %g\n", x.shape().ToString().c_str(), values[0],
              values[1], values[2], values[3]);
  return values == std::vector<float>{1, 3, 2, 4} ? 0 : 1;
}
