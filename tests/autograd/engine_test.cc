// SPDX-License-Identifier: Apache-2.0

// The engine: order, presence, hooks, retain_graph, split backward, recompute, deep graphs.
#include "apogee/autograd/engine.h"

#include <gtest/gtest.h>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/parameter.h"
#include "apogee/autograd/recompute.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/grad_check.h"

namespace apogee::autograd {
namespace engine_test {

using apogee::testing::RandomTensor;

class EngineTest : public ::testing::Test {
 protected:
  std::unique_ptr<Parameter> Param(const std::string& name, const Shape& shape) {
    return std::make_unique<Parameter>(name, RandomTensor(shape, name, context_));
  }
  // A layer stack: linear with GELU, three times; weights[1] is used twice (tied).
  Tensor Stack(const Tensor& x, const std::vector<std::unique_ptr<Parameter>>& w) {
    Tensor h = Linear(x, w[0]->value(), {}, {.activation = Activation::kGeluTanh});
    h = Linear(h, w[1]->value(), {}, {.activation = Activation::kGeluTanh});
    h = Linear(h, w[1]->value(), {}, {.activation = Activation::kGeluTanh});
    return Sum(Linear(h, w[2]->value(), {}));
  }
  std::vector<std::unique_ptr<Parameter>> StackWeights() {
    std::vector<std::unique_ptr<Parameter>> w;
    w.push_back(Param("w0", {6, 4}));
    w.push_back(Param("w1", {6, 6}));
    w.push_back(Param("w2", {3, 6}));
    return w;
  }
  ContextPtr context_ = CpuContext();
};

TEST_F(EngineTest, GradientsAddUpUntilMadeAbsent) {
  auto x = Param("x", {3});
  Backward(Sum(Scale(x->value(), 2)));
  Backward(Sum(Scale(x->value(), 3)));
  EXPECT_EQ(x->grad().ToVector<double>(), std::vector<double>(3, 5));
  x->zero_grad(false);
  EXPECT_EQ(x->grad().ToVector<double>(), std::vector<double>(3, 0));
  x->zero_grad();
  EXPECT_FALSE(x->has_grad());
}

TEST_F(EngineTest, UnusedAndFrozenParametersStayAbsent) {
  auto x = Param("x", {3}), unused = Param("unused", {3}), frozen = Param("frozen", {3});
  frozen->set_requires_grad(false);
  Backward(Sum(Mul(x->value(), frozen->value())));
  EXPECT_TRUE(x->has_grad());
  EXPECT_FALSE(unused->has_grad());
  EXPECT_FALSE(frozen->has_grad());
}

TEST_F(EngineTest, BackwardTwiceNeedsRetainGraph) {
  auto x = Param("x", {3});
  const Tensor loss = Sum(Mul(x->value(), x->value()));
  Backward(loss, {.retain_graph = true});
  const std::vector<double> once = x->grad().ToVector<double>();
  Backward(loss);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(x->grad().ToVector<double>()[i], 2 * once[i]);
  EXPECT_THROW(Backward(loss), Error);
}

TEST_F(EngineTest, RootErrors) {
  auto x = Param("x", {3});
  EXPECT_THROW(Backward(Scale(x->value(), 2)), Error);  // not a scalar
  EXPECT_THROW(Backward(Tensor::Full({}, DType::kF64, 1, context_)), Error);
  NoGradGuard no_grad;
  EXPECT_THROW(Backward(Sum(x->value())), Error);
}

// A tied weight's hook runs once, when its last contribution is in, before earlier layers'
// backward.
TEST_F(EngineTest, HooksRunInsideBackwardWhenTheGradientIsComplete) {
  auto w = StackWeights();
  const Tensor x = RandomTensor({2, 4}, "x", context_);
  std::vector<std::string> order;
  for (auto& p : w) p->AddGradHook([&](Parameter& q) { order.push_back(q.name()); });
  auto watch = Param("watch", {2, 4});
  watch->AddGradHook([&](Parameter&) { order.push_back("input"); });
  Backward(Stack(Add(x, watch->value()), w));
  EXPECT_EQ(order, (std::vector<std::string>{"w2", "w1", "w0", "input"}));
}

// What a hook launches overlaps with the backward of the layers below only if it runs before them.
TEST_F(EngineTest, HooksRunBeforeTheLayersBelow) {
  auto w = StackWeights();
  std::vector<std::string> order;
  for (auto& p : w) p->AddGradHook([&](Parameter& q) { order.push_back(q.name()); });
  const auto watch = [&](const Tensor& h, const std::string& name) {
    EdgeOf(h).node->AddPreHook([&order, name] { order.push_back(name); });
    return h;
  };
  Tensor h = watch(Linear(RandomTensor({2, 4}, "x", context_), w[0]->value(), {}), "layer 0");
  h = watch(Linear(h, w[1]->value(), {}), "layer 1");
  Backward(Sum(watch(Linear(h, w[2]->value(), {}), "layer 2")));
  EXPECT_EQ(order, (std::vector<std::string>{"layer 2", "w2", "layer 1", "w1", "layer 0", "w0"}));
}

// Addition hands one gradient to both operands; what one of them adds later is its own.
TEST_F(EngineTest, ParametersDoNotShareTheirGradients) {
  auto a = Param("a", {3}), b = Param("b", {3});
  const Tensor dy = RandomTensor({3}, "dy", context_);
  const std::vector<double> once = dy.ToVector<double>();
  Backward(Add(a->value(), b->value()), {.grad = dy});
  Backward(Scale(a->value(), 2), {.grad = dy});
  EXPECT_EQ(b->grad().ToVector<double>(), once);
  EXPECT_EQ(dy.ToVector<double>(), once);
  for (size_t i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(a->grad().ToVector<double>()[i], 3 * once[i]);
}

TEST_F(EngineTest, HookMayTakeTheGradientAway) {
  auto w = StackWeights();
  for (auto& p : w) p->AddGradHook([](Parameter& q) { q.zero_grad(); });
  Backward(Stack(RandomTensor({2, 4}, "x", context_), w));
  for (auto& p : w) EXPECT_FALSE(p->has_grad());
  EXPECT_EQ(context_->ledger().live_bytes(MemoryCategory::kGradient), 0);
}

TEST_F(EngineTest, WeightHalvesMayRunLater) {
  const Tensor x = RandomTensor({2, 4}, "x", context_);
  auto plain = StackWeights(), split = StackWeights();
  auto in_plain = Param("in", {2, 4}), in_split = Param("in", {2, 4});
  Backward(Stack(Add(x, in_plain->value()), plain));
  DeferredWeightGrads deferred;
  Backward(Stack(Add(x, in_split->value()), split), {.deferred = &deferred});
  EXPECT_EQ(in_split->grad().ToVector<double>(), in_plain->grad().ToVector<double>());
  for (auto& p : split) EXPECT_FALSE(p->has_grad()) << p->name();
  EXPECT_FALSE(deferred.empty());
  deferred.Run();
  EXPECT_TRUE(deferred.empty());
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(split[i]->grad().ToVector<double>(), plain[i]->grad().ToVector<double>());
  }
}

// With biases, and a weight whose three halves must be added in the plain order to give its bits.
TEST_F(EngineTest, WeightHalvesKeepBiasesAndOrder) {
  const Tensor x = RandomTensor({5, 6}, "x", context_);
  const auto run = [&](bool split) {
    auto w = Param("w", {6, 6}), b = Param("b", {6});
    Tensor h = x;
    for (int i = 0; i < 3; ++i) {
      h = Linear(h, w->value(), b->value(), {.activation = Activation::kGeluTanh});
    }
    DeferredWeightGrads deferred;
    Backward(Sum(h), {.deferred = split ? &deferred : nullptr});
    EXPECT_EQ(w->has_grad() || b->has_grad(), !split);
    deferred.Run();
    return std::pair(w->grad().ToVector<double>(), b->grad().ToVector<double>());
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(EngineTest, RecomputeGivesTheSameBitsWithLessMemory) {
  const Tensor x = RandomTensor({64, 32}, "x", context_);
  auto run = [&](bool recompute) {
    Generator generator(9);
    Parameter w0("w0", RandomTensor({256, 32}, "w0", context_));
    Parameter w1("w1", RandomTensor({32, 256}, "w1", context_));
    auto block = [&](const Tensor& in) {
      const Tensor h = Linear(in, w0.value(), {}, {.activation = Activation::kGeluTanh});
      return Linear(Dropout(h, 0.3, generator), w1.value(), {});
    };
    int hooks = 0;
    w0.AddGradHook([&](Parameter&) { ++hooks; });
    context_->ledger().ResetPeaks();
    Tensor h = x;
    for (int i = 0; i < 4; ++i) h = recompute ? Recompute(block, h, &generator) : block(h);
    const int64_t live = context_->ledger().live_bytes(MemoryCategory::kActivation);
    Backward(Sum(h));
    EXPECT_EQ(hooks, 1);
    // w0's gradient depends on the masks of the graph, w1's on those of the second run.
    const std::vector grads = {w0.grad().ToVector<double>(), w1.grad().ToVector<double>()};
    return std::pair(grads, live);
  };
  const auto [plain, plain_bytes] = run(false);
  const auto [again, again_bytes] = run(true);
  EXPECT_EQ(again, plain);
  EXPECT_LT(again_bytes * 3, plain_bytes);
}

TEST_F(EngineTest, RecomputeNoticesAFunctionThatChanges) {
  auto w = Param("w", {4, 4});
  int calls = 0;
  auto fn = [&](const Tensor& in) {
    const Tensor y = Linear(in, w->value(), {});
    return ++calls == 1 ? y : Gelu(y);
  };
  const Tensor y = Sum(Recompute(fn, RandomTensor({2, 4}, "x", context_)));
  EXPECT_THROW(Backward(y), Error);
}

TEST_F(EngineTest, VeryDeepGraphsNeedNoStack) {
  auto x = Param("x", {1});
  Tensor y = x->value();
  for (int i = 0; i < 200000; ++i) y = Scale(y, 1.0);
  Backward(Sum(y));
  EXPECT_EQ(x->grad().Item(), 1);
}

// The graph is held until the end: what is gone before, backward has freed.
TEST_F(EngineTest, ActivationsAreFreedAsBackwardGoes) {
  auto w = StackWeights();
  MemoryLedger& ledger = context_->ledger();
  const int64_t before = ledger.live_bytes(MemoryCategory::kActivation);
  {
    const Tensor loss = Stack(RandomTensor({32, 4}, "x", context_), w);
    const int64_t recorded = ledger.live_bytes(MemoryCategory::kActivation) - before;
    int64_t at_w1 = 0;
    w[1]->AddGradHook(
        [&](Parameter&) { at_w1 = ledger.live_bytes(MemoryCategory::kActivation) - before; });
    Backward(loss);
    EXPECT_LT(at_w1 * 2, recorded);
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kActivation) - before, loss.bytes());
  }
  EXPECT_EQ(ledger.live_bytes(MemoryCategory::kActivation), before);
}

TEST_F(EngineTest, GradientDTypeOfTheLeafIsKept) {
  Parameter w("w", RandomTensor({5, 4}, "w", context_, 1, DType::kBF16));
  w.set_grad_dtype(DType::kF32);
  Backward(Sum(Linear(RandomTensor({3, 4}, "x", context_, 1, DType::kBF16), w.value(), {})));
  EXPECT_EQ(w.grad().dtype(), DType::kF32);
}

TEST_F(EngineTest, CallbacksRunAtTheEnd) {
  auto w = StackWeights();
  std::vector<std::string> order;
  w[2]->AddGradHook([&](Parameter&) { QueueCallback([&] { order.push_back("end"); }); });
  w[0]->AddGradHook([&](Parameter&) { order.push_back("w0"); });
  Backward(Stack(RandomTensor({2, 4}, "x", context_), w));
  EXPECT_EQ(order, (std::vector<std::string>{"w0", "end"}));
  EXPECT_THROW(QueueCallback([] {}), Error);
}

}  // namespace engine_test
}  // namespace apogee::autograd
