// SPDX-License-Identifier: Apache-2.0

// nn::Gru and nn::Lstm against a loop over scalars in double: layers, states, dropout and
// gradients in two halves.
#include "apogee/nn/recurrent.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/layers.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::nn {
namespace recurrent_test {

using ::apogee::testing::RandomTensor;
using ::testing::DoubleNear;
using ::testing::Pointwise;
using Values = std::vector<double>;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

std::shared_ptr<Recurrent> Make(int gates, int64_t features, int64_t units,
                                const RecurrentOptions& options) {
  if (gates == 3) return std::make_shared<Gru>(features, units, options);
  return std::make_shared<Lstm>(features, units, options);
}

// weight [rows, n] times v, plus bias.
Values Product(const ParameterPtr& weight, const ParameterPtr& bias, const Values& v) {
  const Values w = weight->data().ToVector<double>();
  Values y = bias == nullptr ? Values(w.size() / v.size()) : bias->data().ToVector<double>();
  for (size_t i = 0; i < w.size(); ++i) y[i / v.size()] += w[i] * v[i % v.size()];
  return y;
}

struct Reference {
  std::vector<Values> h, c;  // of each layer

  // One sample's step: the state of the last layer.
  Values Step(const Recurrent& module, Values in) {
    for (size_t l = 0; l < h.size(); ++l) {
      const Recurrent::Layer& layer = module.layers()[l];
      const Values x = Product(layer.weight_ih, layer.bias_ih, in);
      const Values p = Product(layer.weight_hh, layer.bias_hh, h[l]);
      const size_t n = h[l].size();
      for (size_t u = 0; u < n; ++u) {
        if (module.num_gates() == 3) {
          const double r = Sigmoid(x[u] + p[u]), z = Sigmoid(x[n + u] + p[n + u]);
          h[l][u] = (1 - z) * std::tanh(x[2 * n + u] + r * p[2 * n + u]) + z * h[l][u];
        } else {
          const double i = Sigmoid(x[u] + p[u]), f = Sigmoid(x[n + u] + p[n + u]);
          const double o = Sigmoid(x[3 * n + u] + p[3 * n + u]);
          c[l][u] = f * c[l][u] + i * std::tanh(x[2 * n + u] + p[2 * n + u]);
          h[l][u] = o * std::tanh(c[l][u]);
        }
      }
      in = h[l];
    }
    return in;
  }
};

class RecurrentTest : public ::testing::TestWithParam<int> {
 protected:
  std::shared_ptr<Recurrent> Initialized(int64_t features, int64_t units,
                                         const RecurrentOptions& options,
                                         DType dtype = DType::kF64) const {
    const auto module = Make(GetParam(), features, units, options);
    module->Initialize(context_, {.seed = 3, .dtype = dtype});
    return module;
  }
  Tensor Random(const Shape& shape, const char* name, DType dtype = DType::kF64) const {
    return RandomTensor(shape, name, context_, 1, dtype);
  }
  bool is_lstm() const { return GetParam() == 4; }

  const ContextPtr context_ = TestContext({.num_threads = 2});
};
INSTANTIATE_TEST_SUITE_P(Gates, RecurrentTest, ::testing::Values(3, 4));

TEST_P(RecurrentTest, TwoLayersAgreeWithALoop) {
  constexpr int64_t kSamples = 3, kSteps = 5, kFeatures = 4, kUnits = 7;
  for (const bool bias : {true, false}) {
    const auto module = Initialized(kFeatures, kUnits, {.num_layers = 2, .bias = bias});
    const Tensor x = Random({kSamples, kSteps, kFeatures}, "x");
    const Recurrent::Result got = module->Run(x);
    Values y, h(2 * kSamples * kUnits), c = h;
    for (int64_t b = 0; b < kSamples; ++b) {
      Reference reference{std::vector<Values>(2, Values(kUnits)),
                          std::vector<Values>(2, Values(kUnits))};
      for (int64_t t = 0; t < kSteps; ++t) {
        const Tensor in = x.Slice(0, b, 1).Slice(1, t, 1).Contiguous();
        const Values out = reference.Step(*module, in.ToVector<double>());
        y.insert(y.end(), out.begin(), out.end());
      }
      for (size_t l = 0; l < 2; ++l) {
        for (size_t u = 0; u < kUnits; ++u) {
          const size_t at = (l * kSamples + static_cast<size_t>(b)) * kUnits + u;
          h[at] = reference.h[l][u], c[at] = reference.c[l][u];
        }
      }
    }
    const double tolerance = Tolerance(DType::kF64, ErrorKind::kGemm);
    EXPECT_EQ(got.y.shape(), Shape({kSamples, kSteps, kUnits}));
    ExpectClose(got.y.Detach().ToVector<double>(), y, tolerance);
    EXPECT_EQ(got.state.h.shape(), Shape({2, kSamples, kUnits}));
    ExpectClose(got.state.h.ToVector<double>(), h, tolerance);
    ASSERT_EQ(got.state.c.defined(), is_lstm());
    if (is_lstm()) ExpectClose(got.state.c.ToVector<double>(), c, tolerance);
    EXPECT_EQ((*module)(x).Detach().ToVector<double>(), got.y.Detach().ToVector<double>());
  }
}

TEST_P(RecurrentTest, LowerPrecisionsAreNearF64) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto module = Initialized(6, 9, {.num_layers = 2}, dtype),
               exact = Initialized(6, 9, {.num_layers = 2});
    const auto from = module->Parameters(), to = exact->Parameters();
    for (size_t i = 0; i < from.size(); ++i) to[i]->set_value(from[i]->data().To(DType::kF64));
    const Tensor x = Random({2, 11, 6}, "x", dtype);
    const Recurrent::Result got = module->Run(x), want = exact->Run(x.To(DType::kF64));
    EXPECT_EQ(got.y.dtype(), dtype);
    ExpectClose(got.y.Detach().ToVector<double>(), want.y.Detach().ToVector<double>(),
                Tolerance(dtype, ErrorKind::kGemm));
    if (!is_lstm()) continue;
    EXPECT_EQ(got.state.c.dtype(), DType::kF32);
    ExpectClose(got.state.c.ToVector<double>(), want.state.c.ToVector<double>(),
                Tolerance(dtype, ErrorKind::kGemm));
  }
}

// The gradients of x, of the initial states and of all weights of two layers.
TEST_P(RecurrentTest, GradientsAgreeWithDifferences) {
  const auto module = Initialized(3, 2, {.num_layers = 2});
  std::vector<Tensor> inputs{Random({2, 4, 3}, "x"), Random({2, 2, 2}, "h")};
  if (is_lstm()) inputs.push_back(Random({2, 2, 2}, "c"));
  apogee::testing::ExpectGradients(inputs, [&](const std::vector<Tensor>& in) {
    return module->Run(in[0], {.h = in[1], .c = is_lstm() ? in[2] : Tensor()}).y;
  });
  for (const ParameterPtr& parameter : module->Parameters()) {
    SCOPED_TRACE(parameter->name());
    const Tensor value = parameter->data();
    const Tensor dy = Random({2, 4, 2}, "dy");
    const auto loss = [&] {
      return autograd::Sum(autograd::Mul((*module)(inputs[0]), dy)).Detach().Item();
    };
    for (const ParameterPtr& each : module->Parameters()) each->zero_grad();
    autograd::Backward((*module)(inputs[0]), {.grad = dy});
    const Values grad = parameter->grad().ToVector<double>(), start = value.ToVector<double>();
    for (size_t i = 0; i < grad.size(); i += 5) {
      Values moved = start;
      moved[i] += 1e-5;
      value.SetValues(moved);
      const double above = loss();
      moved[i] -= 2e-5;
      value.SetValues(moved);
      EXPECT_NEAR(grad[i], (above - loss()) / 2e-5, 1e-8) << i;
      value.SetValues(start);
    }
  }
}

// In two calls a sequence has the bits of one, because states are not rounded on the way. On a GPU
// cuBLASLt may choose other kernels for the shorter products.
TEST_P(RecurrentTest, GoesOnFromAState) {
  for (const DType dtype : kFloats) {
    const auto module = Initialized(5, 6, {.num_layers = 2}, dtype);
    const Tensor x = Random({3, 9, 5}, "x", dtype);
    const Recurrent::Result whole = module->Run(x), first = module->Run(x.Slice(1, 0, 4));
    const Recurrent::Result second = module->Run(x.Slice(1, 4, 5), first.state);
    const double tolerance = TestsRunOnCuda() ? Tolerance(dtype, ErrorKind::kGemm) : 0;
    const auto expect_same = [&](const Tensor& got, const Tensor& want) {
      EXPECT_THAT(got.ToVector<double>(),
                  Pointwise(DoubleNear(tolerance), want.ToVector<double>()));
    };
    expect_same(second.y.Detach(), whole.y.Detach().Slice(1, 4, 5));
    expect_same(second.state.h, whole.state.h);
    if (is_lstm()) expect_same(second.state.c, whole.state.c);
    // A plain call starts from zeros again.
    EXPECT_EQ((*module)(x).Detach().ToVector<double>(), whole.y.Detach().ToVector<double>());
  }
}

TEST_P(RecurrentTest, HooksRunAroundRun) {
  const auto module = Initialized(3, 4, {});
  std::vector<std::string> events;
  const auto note = [&](const char* event) {
    return [&events, event](Module&) { events.emplace_back(event); };
  };
  module->AddPreForwardHook([&](Module&, const Tensor&) { events.emplace_back("forward"); });
  module->AddPostForwardHook(note("end of forward"));
  module->AddPreBackwardHook(note("backward"));
  module->AddPostBackwardHook(note("end of backward"));
  const Recurrent::Result result = module->Run(Random({2, 3, 3}, "x"));
  EXPECT_EQ(autograd::MetaOf(result.state.h), nullptr);
  autograd::Backward(autograd::Sum(result.y));
  EXPECT_EQ(events,
            (std::vector<std::string>{"forward", "end of forward", "backward", "end of backward"}));
}

// Gradients of bf16 weights in f32 have the same bits in one pass and with the weights' half later.
TEST_P(RecurrentTest, BackwardInTwoHalves) {
  const auto module = Initialized(5, 6, {.num_layers = 2}, DType::kBF16);
  autograd::Parameter x("x", Random({3, 7, 5}, "x", DType::kBF16));
  for (const ParameterPtr& parameter : module->Parameters()) {
    parameter->set_grad_dtype(DType::kF32);
  }
  const auto run = [&](autograd::DeferredWeightGrads* deferred) {
    std::vector<Values> grads;
    x.zero_grad();
    for (const ParameterPtr& parameter : module->Parameters()) parameter->zero_grad();
    const Tensor y = (*module)(x.value());
    autograd::Backward(y, {.grad = Random(y.shape(), "dy", DType::kBF16), .deferred = deferred});
    if (deferred != nullptr) {
      EXPECT_FALSE(module->Parameters()[0]->has_grad());
      deferred->Run();
    }
    grads.push_back(x.grad().ToVector<double>());
    for (const ParameterPtr& parameter : module->Parameters()) {
      EXPECT_EQ(parameter->grad().dtype(), DType::kF32);
      grads.push_back(parameter->grad().ToVector<double>());
    }
    return grads;
  };
  autograd::DeferredWeightGrads deferred;
  const std::vector<Values> whole = run(nullptr);
  EXPECT_EQ(run(&deferred), whole);
}

// Between two layers there is an nn::Dropout: its masks, whatever the split of the batch.
TEST_P(RecurrentTest, DropoutIsThatOfTheWholeBatch) {
  const auto module = Initialized(4, 5, {.num_layers = 2, .dropout = 0.5});
  const Tensor x = Random({6, 3, 4}, "x");
  const auto start = [&](Generator& generator, int64_t sample) {
    generator = Generator(11);
    generator.set_first_sample(sample);
  };
  Container root;
  const auto child = root.Register("rnn", module);
  start(root.generator(), 0);
  const Values whole = (*module)(x).Detach().ToVector<double>();
  Values parts;
  for (int64_t first = 0; first < 6; first += 2) {
    start(root.generator(), first);
    const Values part = (*module)(x.Slice(0, first, 2)).Detach().ToVector<double>();
    parts.insert(parts.end(), part.begin(), part.end());
  }
  // A processor may have other products for fewer rows; another mask would be far off.
  EXPECT_THAT(parts, Pointwise(DoubleNear(Tolerance(DType::kF32, ErrorKind::kGemm)), whole));

  // Layer by layer, with the function between them.
  const auto lower = Initialized(4, 5, {}), upper = Initialized(5, 5, {});
  const std::vector<ParameterPtr> all = module->Parameters();
  for (size_t i = 0; i < 4; ++i) {
    lower->Parameters()[i]->set_value(all[i]->data());
    upper->Parameters()[i]->set_value(all[4 + i]->data());
  }
  start(root.generator(), 0);
  const Tensor masked = autograd::Dropout((*lower)(x), 0.5, root.generator());
  EXPECT_EQ((*upper)(masked).Detach().ToVector<double>(), whole);
  module->Train(false);
  EXPECT_EQ((*module)(x).Detach().ToVector<double>(),
            (*upper)((*lower)(x)).Detach().ToVector<double>());
}

TEST_P(RecurrentTest, NamesAndFirstValuesAreTorchs) {
  const auto module = Initialized(3, 16, {.num_layers = 2});
  std::vector<std::string> names;
  for (const ParameterPtr& parameter : module->Parameters()) {
    names.push_back(parameter->name() + " " + parameter->shape().ToString());
    for (const double value : parameter->data().ToVector<double>()) {
      EXPECT_LE(std::abs(value), 0.25);
    }
  }
  const std::string rows = std::to_string(16 * GetParam());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "weight_ih_l0 [" + rows + ", 3]", "weight_hh_l0 [" + rows + ", 16]",
                       "bias_ih_l0 [" + rows + "]", "bias_hh_l0 [" + rows + "]",
                       "weight_ih_l1 [" + rows + ", 16]", "weight_hh_l1 [" + rows + ", 16]",
                       "bias_ih_l1 [" + rows + "]", "bias_hh_l1 [" + rows + "]"}));
  EXPECT_EQ(ConfigOf(*Initialized(3, 4, {.dropout = 0.25})).training.at("dropout"),
            ConfigText(0.25));
}

// As a rank has that got no samples of an uneven batch.
TEST_P(RecurrentTest, NoSamples) {
  const auto module = Initialized(4, 5, {.num_layers = 2});
  autograd::Parameter x("x", Tensor::Zeros({0, 3, 4}, DType::kF64, context_));
  const Tensor y = (*module)(x.value());
  EXPECT_EQ(y.shape(), (Shape{0, 3, 5}));
  autograd::Backward(autograd::Sum(y));
  EXPECT_EQ(x.grad().shape(), (Shape{0, 3, 4}));
  for (const ParameterPtr& parameter : module->Parameters()) {
    for (const double value : parameter->grad().ToVector<double>()) EXPECT_EQ(value, 0);
  }
}

}  // namespace recurrent_test
}  // namespace apogee::nn
