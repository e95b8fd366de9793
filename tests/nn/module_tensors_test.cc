// SPDX-License-Identifier: Apache-2.0

// Named inputs and outputs, buffers, and initialisers by name.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/recompute.h"
#include "apogee/nn/layers.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::nn {
namespace module_tensors_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MessageOf;

// sum = w a + v b, product = a b.
class TwoByTwo : public Module {
 public:
  TwoByTwo()
      : w_(RegisterParameter("w", {}, Init::Constant(3))),
        v_(RegisterParameter("v", {}, Init::Constant(1))) {}
  NamedTensors ForwardNamed(const NamedTensors& in) override {
    const Tensor &a = in.at("a"), &b = in.at("b");
    return {{"sum", autograd::Add(autograd::Mul(a, w_->value()), autograd::Mul(b, v_->value()))},
            {"product", autograd::Mul(a, b)}};
  }

 private:
  ParameterPtr w_, v_;
};

// Gets twice the inputs. The way to `a` is longer, so backward completes its gradient first.
class Outer : public Module {
 public:
  Outer() : inner_(Register("inner", std::make_shared<TwoByTwo>())) {}
  NamedTensors ForwardNamed(const NamedTensors& in) override {
    Tensor a = in.at("a");
    for (const double factor : {4.0, 2.0, 0.5, 0.5}) a = autograd::Scale(a, factor);
    return (*inner_)({{"a", a}, {"b", autograd::Scale(in.at("b"), 2)}});
  }
  TwoByTwo& inner() { return *inner_; }

 private:
  std::shared_ptr<TwoByTwo> inner_;
};

class NamedTensorsTest : public ::testing::Test {
 protected:
  NamedTensorsTest()
      : a_("a", Tensor::FromVector<double>({1, 2}, {2}, context_)),
        b_("b", Tensor::FromVector<double>({5, 7}, {2}, context_)) {}
  NamedTensors Inputs() { return {{"a", a_.value()}, {"b", b_.value()}}; }

  const ContextPtr context_ = CpuContext();
  Parameter a_, b_;
};

TEST_F(NamedTensorsTest, ComputesAndGivesGradients) {
  Outer model;
  model.Initialize(context_, {.dtype = DType::kF64});
  const NamedTensors out = model(Inputs());
  EXPECT_THAT(out.at("sum").ToVector<double>(), ElementsAre(16, 26));
  EXPECT_THAT(out.at("product").ToVector<double>(), ElementsAre(20, 56));
  autograd::Backward(autograd::Sum(autograd::Add(out.at("sum"), out.at("product"))));
  EXPECT_THAT(a_.grad().ToVector<double>(), ElementsAre(6 + 20, 6 + 28));
  EXPECT_THAT(b_.grad().ToVector<double>(), ElementsAre(2 + 4, 2 + 8));
  EXPECT_EQ(model.FindParameter("inner.w")->grad().Item(), 2 + 4);
}

TEST_F(NamedTensorsTest, HooksRunOnceAroundTheModulesPartOfBackward) {
  Outer model;
  model.Initialize(context_, {.dtype = DType::kF64});
  std::string events;
  Module& inner = model.inner();
  inner.AddPreForwardHook([&](Module&, const Tensor& input) {
    events += "forward of " + std::to_string(input.size(0)) + ", ";
  });
  inner.AddPostForwardHook([&](Module&) { events += "forward ends, "; });
  inner.AddPreBackwardHook([&](Module&) {
    EXPECT_FALSE(model.FindParameter("inner.w")->has_grad());
    events += "backward, ";
  });
  inner.AddPostBackwardHook([&](Module&) {
    EXPECT_TRUE(model.FindParameter("inner.w")->has_grad());
    EXPECT_TRUE(model.FindParameter("inner.v")->has_grad());
    EXPECT_FALSE(b_.has_grad());
    events += "backward ends, ";
  });
  const std::string forward = "forward of 2, forward ends, ";
  NamedTensors out = model(Inputs());
  autograd::Backward(autograd::Sum(autograd::Add(out.at("sum"), out.at("product"))));
  EXPECT_EQ(events, forward + "backward, backward ends, ");
}

// Gemini does so when a forward reads a parameter for the first time.
TEST_F(NamedTensorsTest, HooksThatAreAddedDuringForwardRunInItsBackward) {
  TwoByTwo model;
  model.Initialize(context_, {.dtype = DType::kF64});
  int opened = 0, closed = 0;
  model.WrapForward([&](const Tensor& x, const Module::ForwardFunction& forward) {
    model.AddPreBackwardHook([&](Module&) { ++opened; });
    model.AddPostBackwardHook([&](Module&) { ++closed; });
    return forward(x);
  });
  const Tensor a = a_.value().Detach(), b = b_.value().Detach();
  autograd::Backward(autograd::Sum(model({{"a", a}, {"b", b}}).at("sum")));
  EXPECT_EQ(opened, 1);
  EXPECT_EQ(closed, 1);
}

TEST_F(NamedTensorsTest, PostHooksRunIfGradientsOfSomeInputsNeverArrive) {
  TwoByTwo model;
  model.Initialize(context_, {.dtype = DType::kF64});
  int opened = 0, closed = 0;
  model.AddPreBackwardHook([&](Module&) { ++opened; });
  model.AddPostBackwardHook([&](Module&) { ++closed; });
  for (int run = 1; run <= 2; ++run) {
    // The gradient of b does not pass through the module's input "b".
    const Tensor b = b_.value();
    const Tensor sum = model({{"a", a_.value()}, {"b", b.Detach()}}).at("sum");
    autograd::Backward(autograd::Sum(sum));
    EXPECT_EQ(opened, run);
    EXPECT_EQ(closed, run);
  }
}

TEST_F(NamedTensorsTest, AWrapperGetsTheFirstInputAndGivesTheFirstOutput) {
  TwoByTwo model;
  model.Initialize(context_, {.dtype = DType::kF64});
  model.WrapForward([](const Tensor& x, const Module::ForwardFunction& forward) {
    return autograd::Scale(forward(autograd::Scale(x, 10)), 100);
  });
  const NamedTensors out = model(Inputs());
  EXPECT_THAT(out.at("product").ToVector<double>(), ElementsAre(5000, 14000));
  EXPECT_THAT(out.at("sum").ToVector<double>(), ElementsAre(35, 67));
}

TEST_F(NamedTensorsTest, AWrapperMayRunTheForwardAgainInBackward) {
  TwoByTwo model;
  model.Initialize(context_, {.dtype = DType::kF64});
  model.WrapForward([](const Tensor& x, const Module::ForwardFunction& forward) {
    return autograd::Recompute(forward, x);
  });
  // Of {"product", "sum"} the wrapper gives the first.
  autograd::Backward(autograd::Sum(model(Inputs()).at("product")));
  EXPECT_THAT(a_.grad().ToVector<double>(), ElementsAre(5, 7));
}

TEST_F(NamedTensorsTest, Misuse) {
  TwoByTwo model;
  Linear linear(2, 2);
  const Tensor x = a_.value();
  EXPECT_THAT(MessageOf([&] { model(x); }), HasSubstr("takes named tensors"));
  EXPECT_THAT(MessageOf([&] { linear({{"x", x}}); }), HasSubstr("override ForwardNamed"));
  EXPECT_THAT(MessageOf([&] { model(NamedTensors{}); }), HasSubstr("called without inputs"));
  EXPECT_THAT(MessageOf([&] {
                model({{"a", x}, {"b", Tensor()}});
              }),
              HasSubstr("input \"b\" is undefined"));
  model.ReplaceForward([](const Tensor& y) { return y; });
  EXPECT_THAT(MessageOf([&] { model(Inputs()); }), HasSubstr("can only do so with one tensor"));
}

class WithBuffer : public Module {
 public:
  WithBuffer() : fc_(Register("fc", std::make_shared<Linear>(2, 2))) {
    table_ = RegisterBuffer("table", {3}, Init::Constant(0.1));
  }
  Tensor Forward(const Tensor& x) override { return x; }
  void AddBuffer(const std::string& name) { RegisterBuffer(name, {1}, Init::Constant(0)); }
  void AddParameter(const std::string& name) { RegisterParameter(name, {1}, Init::Constant(0)); }

 private:
  std::shared_ptr<Linear> fc_;
  ParameterPtr table_;
};

TEST(BuffersTest, AreNoParametersAndKeepTheirDigits) {
  Container root;
  const auto child = root.Register("child", std::make_shared<WithBuffer>());
  ASSERT_EQ(root.Buffers().size(), 1u);
  const ParameterPtr buffer = root.Buffers()[0];
  EXPECT_EQ(buffer->name(), "child.table");
  EXPECT_FALSE(buffer->requires_grad());
  EXPECT_EQ(root.Parameters().size(), 2u);
  EXPECT_EQ(root.num_parameters(), 6);
  const ContextPtr context = CpuContext();
  root.InitializeLazily(context, {.seed = 1, .dtype = DType::kBF16});
  EXPECT_EQ(buffer->dtype(), DType::kF32);
  EXPECT_THAT(buffer->data().ToVector<float>(), ElementsAre(0.1f, 0.1f, 0.1f));
  root.To(DType::kF16);
  EXPECT_EQ(buffer->dtype(), DType::kF32);
  root.To(DType::kF64);
  EXPECT_EQ(buffer->dtype(), DType::kF64);
}

TEST(BuffersTest, NamesAreUnique) {
  WithBuffer model;
  EXPECT_THAT(MessageOf([&] { model.AddBuffer("table"); }),
              HasSubstr("has a buffer \"table\" already"));
  EXPECT_THAT(MessageOf([&] { model.AddParameter("table"); }),
              HasSubstr("has a buffer \"table\" already"));
  model.AddParameter("p");
  EXPECT_THAT(MessageOf([&] { model.AddBuffer("p"); }), HasSubstr("has a parameter \"p\" already"));
  model.CloseTree();
  EXPECT_THAT(MessageOf([&] { model.AddBuffer("late"); }),
              HasSubstr("gets the buffer \"late\" after boost"));
}

// The standard deviation and the largest absolute value of a parameter.
std::pair<double, double> Spread(Module& model, const std::string& name) {
  double sum = 0, largest = 0;
  const std::vector<double> values = model.FindParameter(name)->data().ToVector<double>();
  for (const double value : values) {
    sum += value * value;
    largest = std::max(largest, std::abs(value));
  }
  return {std::sqrt(sum / static_cast<double>(values.size())), largest};
}

TEST(InitTest, ByNameAndPattern) {
  struct Case {
    const char* name;
    double std;
    double limit;  // 0: none
  };
  // in 200, out 100.
  for (const Case& each :
       {Case{"xavier_uniform", std::sqrt(2.0 / 300), std::sqrt(6.0 / 300)},
        Case{"xavier_normal", std::sqrt(2.0 / 300), 0},
        Case{"kaiming_uniform", std::sqrt(2.0 / 200), std::sqrt(6.0 / 200)},
        Case{"kaiming_normal", std::sqrt(2.0 / 200), 0}, Case{"ones", 1, 1}, Case{"zeros", 0, 0}}) {
    Container model;
    model.Register("a", std::make_shared<Linear>(200, 100));
    model.SetInit("*.weight", each.name);
    model.SetInit("*.bias", Init::Constant(0.5));
    model.Initialize(CpuContext(), {.seed = 5});
    const auto [std, largest] = Spread(model, "a.weight");
    EXPECT_NEAR(std, each.std, 0.02 * each.std) << each.name;
    if (each.limit > 0) EXPECT_LE(largest, each.limit * (1 + 1e-6)) << each.name;
    if (each.limit > 0) EXPECT_GT(largest, 0.99 * each.limit) << each.name;
    EXPECT_EQ(Spread(model, "a.bias").second, 0.5);
  }
}

TEST(InitTest, CountsThePlacesOfAKernel) {
  const Init init = Init::Named("kaiming_normal", {8, 4, 3, 5});
  EXPECT_DOUBLE_EQ(init.b, std::sqrt(2.0 / (4 * 3 * 5)));
  EXPECT_DOUBLE_EQ(Init::Named("xavier_normal", {8, 4, 3, 5}).b,
                   std::sqrt(2.0 / (4 * 15 + 8 * 15)));
}

TEST(InitTest, Misuse) {
  Container model;
  model.Register("a", std::make_shared<Linear>(2, 3));
  EXPECT_THAT(MessageOf([&] { model.SetInit("a.weight", "kaiming__normal"); }),
              HasSubstr("no \"kaiming__normal\""));
  EXPECT_THAT(MessageOf([&] { model.SetInit("*", "glorot"); }),
              HasSubstr("no \"glorot\"; names are zeros"));
  EXPECT_THAT(MessageOf([&] { model.SetInit("a.bias", "xavier_normal"); }),
              HasSubstr("needs a weight [out, in, ..], got [3]"));
  EXPECT_THAT(MessageOf([&] { model.SetInit("b.*", "zeros"); }),
              HasSubstr("no parameter of the root module matches \"b.*\""));
  model.Initialize(CpuContext());
  EXPECT_THAT(MessageOf([&] { model.SetInit("a.*", "zeros"); }), HasSubstr("has a value already"));
}

}  // namespace module_tensors_test
}  // namespace apogee::nn
