// SPDX-License-Identifier: Apache-2.0

// An existing program with its own weights and gradients, without Module or autograd, uses an
// Apogee optimizer: it wraps the buffers, hands over the gradient and steps. Fits a line by least
// squares.
//
//   02_bring_your_own_gradients [optimizer]          # any name of the registry; default adam
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "apogee/apogee.h"

using namespace apogee;

int main(int argc, char** argv) try {
  // The program's own memory: the weights of y = w[0] x + w[1], their gradient, and the data.
  std::vector<float> w = {0, 0}, grad(2), x, y;
  for (int i = 0; i < 100; ++i) {
    x.push_back(static_cast<float>(i) / 50 - 1);
    y.push_back(3 * x.back() - 0.5f);
  }

  const ContextPtr context = CpuContext();
  const auto weights =
      std::make_shared<autograd::Parameter>("w", Tensor::Wrap(w.data(), {2}, DType::kF32, context));
  const auto optimizer =
      ValueOrThrow(optim::MakeOptimizer(argc > 1 ? argv[1] : "adam", {weights}, {{"lr", "0.05"}}));

  for (int step = 1; step <= 400; ++step) {
    grad = {0, 0};
    float loss = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float error = w[0] * x[i] + w[1] - y[i];
      loss += error * error / 100;
      grad[0] += error * x[i] / 50;
      grad[1] += error / 50;
    }
    weights->set_grad(Tensor::Wrap(grad.data(), {2}, DType::kF32, context));
    optimizer->step();  // updates w in place; the states belong to the optimizer
    if (step % 100 == 0)
      std::printf("step %3d  loss %.6f  w = %.4f %.4f\n", step, loss, w[0], w[1]);
  }
  if (std::fflush(stdout) != 0) throw std::runtime_error("cannot write to the standard output");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "02_bring_your_own_gradients: %s\n", error.what());
  return 2;
}
