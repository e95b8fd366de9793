// The model, its data, and its plan for tensor parallelism. Replace them with your own.
#ifndef MY_APP_OWN_MODEL_H_
#define MY_APP_OWN_MODEL_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "apogee/apogee.h"

namespace app {

using namespace apogee;

// Tells two spirals apart: points [samples, 2] -> logits [samples, 2].
class OwnModel : public nn::Module {
 public:
  explicit OwnModel(int64_t width)
      : in_(Register("in", std::make_shared<nn::Linear>(
                               2, width, nn::LinearOptions{.activation = Activation::kTanh}))),
        up_(Register("up",
                     std::make_shared<nn::Linear>(
                         width, 2 * width, nn::LinearOptions{.activation = Activation::kTanh}))),
        down_(Register("down", std::make_shared<nn::Linear>(2 * width, width))),
        out_(Register("out", std::make_shared<nn::Linear>(width, 2))) {}

  Tensor Forward(const Tensor& points) override {
    const Tensor x = (*in_)(points);
    return (*out_)(autograd::Add(x, (*down_)((*up_)(x))));
  }

 private:
  std::shared_ptr<nn::Linear> in_, up_, down_, out_;
};

// Plugin `hybrid` with tp_size above 1 cuts the layer `up` by columns and `down` by rows.
inline nn::parallel::ParallelPlan OwnPlan() {
  using enum nn::parallel::ParallelStyle;
  return {.name = "my_app",
          .rules = {{.pattern = "up", .style = kColumn}, {.pattern = "down", .style = kRow}}};
}

// Samples `first` to `first + count` of a step. A sample is a function of its number, so every
// layout of ranks sees the same batches.
inline data::Batch Spirals(int64_t step, int64_t first, int64_t count, DType dtype,
                           const ContextPtr& context) {
  constexpr int64_t kSamplesPerStep = 1009, kPlaces = 997;
  constexpr double kTurns = 9.4, kPi = 3.141592653589793;
  std::vector<double> points;
  std::vector<int64_t> arms;
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t arm = i % 2, place = (kSamplesPerStep * step + 31 * i) % kPlaces;
    const double radius = static_cast<double>(place + 1) / kPlaces;
    const double angle = kTurns * radius + static_cast<double>(arm) * kPi;
    points.push_back(radius * std::cos(angle));
    points.push_back(radius * std::sin(angle));
    arms.push_back(arm);
  }
  return {Tensor::FromVector<double>(points, {count, 2}, context).To(dtype),
          Tensor::FromVector<int64_t>(arms, {count}, context)};
}

}  // namespace app

#endif  // MY_APP_OWN_MODEL_H_
