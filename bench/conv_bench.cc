// SPDX-License-Identifier: Apache-2.0

// The time of one convolution forward and backward, for scripts/torch_layers.py, which has the
// shapes and runs PyTorch beside it. Prints the median seconds of `repeats` runs.
//
//   conv_bench threads f32|bf16 wall|processor repeats samples in height width out kernel stride
//       padding groups input_gradient                                # the last one is 0 or 1
//
// The processor's time counts the waiting of threads, too: use it with one thread, beside other
// work.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/convolution.h"
#include "apogee/autograd/parameter.h"
#include "apogee/core/rng.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee {
namespace {

Tensor Random(const std::string& name, const Shape& shape, DType dtype, const ContextPtr& context) {
  const Tensor values = Tensor::Empty(shape, DType::kF32, context);
  ops::FillNormal(values, 0, 0.1, MakeKey(1, name));
  return values.To(dtype);
}

double Now(bool processor) {
  if (processor) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Run(int threads, DType dtype, bool processor, int repeats, const std::vector<int64_t>& n) {
  const ContextPtr context = CpuContext({.num_threads = threads});
  const int64_t groups = n[8];
  autograd::Parameter x("x", Random("x", {n[0], n[1], n[2], n[3]}, dtype, context));
  autograd::Parameter weight("weight",
                             Random("weight", {n[4], n[1] / groups, n[5], n[5]}, dtype, context));
  autograd::Parameter bias("bias", Random("bias", {n[4]}, dtype, context));
  x.set_requires_grad(n[9] != 0);
  const auto forward = [&] {
    return autograd::Conv2d(x.value(), weight.value(), bias.value(),
                            {.stride = n[6], .padding = n[7], .groups = groups});
  };
  const Tensor dy = Random("dy", forward().shape(), dtype, context);
  std::vector<double> seconds;
  for (int i = -2; i < repeats; ++i) {
    const double begin = Now(processor);
    autograd::Backward(forward(), {.grad = dy});
    const double end = Now(processor);
    for (autograd::Parameter* parameter : {&x, &weight, &bias}) parameter->zero_grad();
    if (i >= 0) seconds.push_back(end - begin);
  }
  std::ranges::sort(seconds);
  std::printf("%.9f\n", seconds[seconds.size() / 2]);
  return 0;
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) {
  constexpr int kArguments = 15;
  if (argc != kArguments) {
    std::fprintf(stderr,
                 "conv_bench threads f32|bf16 wall|processor repeats samples in height width out "
                 "kernel stride padding groups input_gradient\n");
    return 2;
  }
  std::vector<int64_t> numbers;
  for (int i = 5; i < argc; ++i) numbers.push_back(std::atoll(argv[i]));
  return apogee::Run(std::atoi(argv[1]), apogee::DTypeFromName(argv[2]),
                     std::string(argv[3]) == "processor", std::atoi(argv[4]), numbers);
}
