// SPDX-License-Identifier: Apache-2.0

// Forward and backward of one recurrent layer, gradients of the input and of all weights included.
// Prints the median time of a step in milliseconds, by the clock on the wall and of the processor,
// as one JSON line. scripts/torch_layers.py compares it with PyTorch.
//
//   recurrent_bench gru|lstm THREADS SAMPLES STEPS FEATURES UNITS [REPEATS [f32|bf16]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/parameter.h"
#include "apogee/nn/recurrent.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee {
namespace {

int Main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr,
                 "usage: recurrent_bench gru|lstm THREADS SAMPLES STEPS FEATURES UNITS "
                 "[REPEATS [f32|bf16]]\n");
    return 2;
  }
  const std::string kind = argv[1];
  const ContextPtr context = CpuContext({.num_threads = std::atoi(argv[2])});
  const int64_t samples = std::atoi(argv[3]), steps = std::atoi(argv[4]);
  const int64_t features = std::atoi(argv[5]), units = std::atoi(argv[6]);
  const int repeats = argc > 7 ? std::atoi(argv[7]) : 9;
  const DType dtype = DTypeFromName(argc > 8 ? argv[8] : "f32");

  std::shared_ptr<nn::Recurrent> layer = std::make_shared<nn::Gru>(features, units);
  if (kind == "lstm") layer = std::make_shared<nn::Lstm>(features, units);
  layer->Initialize(context, {.seed = 1, .dtype = dtype});
  const auto normal = [&](const Shape& shape, const char* name) {
    const Tensor x = Tensor::Empty(shape, DType::kF32, context);
    ops::FillNormal(x, 0, 1, MakeKey(1, name));
    return x.To(dtype);
  };
  autograd::Parameter x("x", normal({samples, steps, features}, "x"));
  const Tensor dy = normal({samples, steps, units}, "dy");

  std::vector<double> wall, processor;
  for (int turn = 0; turn < repeats + 2; ++turn) {
    x.zero_grad();
    for (const nn::ParameterPtr& parameter : layer->Parameters()) parameter->zero_grad();
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t processor_begin = std::clock();
    const Tensor y = (*layer)(x.value());
    autograd::Backward(y, {.grad = dy});
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    const std::clock_t ticks = std::clock() - processor_begin;
    if (turn < 2) continue;
    wall.push_back(time.count());
    processor.push_back(1e3 * static_cast<double>(ticks) / CLOCKS_PER_SEC);
  }
  std::sort(wall.begin(), wall.end());
  std::sort(processor.begin(), processor.end());
  std::printf("{\"wall\": %.4f, \"processor\": %.4f}\n", wall[wall.size() / 2],
              processor[processor.size() / 2]);
  return 0;
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) { return apogee::Main(argc, argv); }
