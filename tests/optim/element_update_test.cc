// SPDX-License-Identifier: Apache-2.0

// Updates of elements that a user wrote, on the CPU with threads and on a GPU.
#include "apogee/optim/element_update.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

#include "apogee/optim/momentum/sgd.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/optim/own_element.h"
#include "apogee/tests/support/heavy_ball.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::optim {
namespace element_update_test {

struct OwnOptions {
  double lr = 0.1;
  double beta = 0.8;

  static std::vector<OptionField<OwnOptions>> Fields() {
    return {{"lr", &OwnOptions::lr}, {"beta", &OwnOptions::beta}};
  }
};

// The rate falls with the parameter's own step.
struct OwnRule : RuleOf<OwnOptions> {
  static constexpr const char* kName = "own";
  explicit OwnRule(std::vector<OwnOptions> groups) : RuleOf(kName, std::move(groups)) {}

  OptimizerTraits traits() override {
    return {.shards = true, .decides_on_device = decides_on_device};
  }
  void States(const Subject&, std::vector<StateSpec>& specs) const override {
    specs = {{"m"}, {"v"}, {"mask"}};
  }
  void Update(const RuleStep& step) override {
    const OwnOptions& o = options(step.group);
    if (!on_every_device) return UpdateElements(step.params, step.decision, CpuElement{o.lr});
    const auto element = [&](const ActiveParam& param) {
      return OwnElement{o.lr / static_cast<double>(param.view->step()), o.beta, 1e-3};
    };
    UpdateElements(step.params, step.decision, element, {"m", "v", "mask"});
  }

  bool decides_on_device = true;
  bool on_every_device = true;
};
using Own = OptimizerOf<OwnRule>;

struct Trained {
  std::vector<double> w, m, v, mask;
};

// Five parameters of awkward sizes, in steps of which the parameters miss different ones. Gradients
// are too large by the loss scale.
class ElementUpdateTest : public ::testing::Test {
 protected:
  static constexpr int kSteps = 4;

  void Make(DType dtype, int num_threads) {
    context_ = TestContext({.num_threads = num_threads});
    params_.clear();
    expected_.clear();
    for (const int64_t n : {1, 37, 1025, 70003}) {
      params_.push_back(
          RandomParam("p" + std::to_string(n), {n}, dtype, context_, static_cast<uint64_t>(n)));
    }
    own_ = std::make_unique<Own>(params_);
    own_->set_step_options({.loss_scale = 2});
    for (size_t i = 0; i < params_.size(); ++i) {
      const auto n = static_cast<size_t>(params_[i]->shape().numel());
      std::vector<double> mask(n);
      for (size_t k = 0; k < n; ++k) mask[k] = static_cast<double>(k % 3);
      ParamView& view = own_->views()[i];
      view.AddState("mask", StateKind::kElementwise)
          .CopyFrom(
              Tensor::FromVector(mask, {static_cast<int64_t>(n)}, context_, view.compute_dtype()));
      expected_.push_back({Values(params_[i]->value()), Trained{}.w, {}, mask});
      expected_[i].m = expected_[i].v = std::vector<double>(n);
    }
    steps_.assign(params_.size(), 0);
  }
  // One step; the parameters with an odd number sit out the second one.
  void Step(uint64_t step) {
    for (size_t i = 0; i < params_.size(); ++i) {
      params_[i]->zero_grad();
      if (step == 1 && i % 2 == 1) continue;
      const Tensor grad =
          RandomTensor(params_[i]->shape(), params_[i]->dtype(), context_, 100 * step + i, 2);
      params_[i]->set_grad(grad);
      Reference(expected_[i], Values(grad), ++steps_[i]);
    }
    own_->step();
  }
  static void Reference(Trained& x, const std::vector<double>& grad, int step) {
    const OwnOptions o;
    for (size_t k = 0; k < grad.size(); ++k) {
      const double g = grad[k] / 2;
      x.m[k] = o.beta * x.m[k] + (1 - o.beta) * g;
      x.v[k] = std::max(0.9 * x.v[k], std::abs(g));
      x.w[k] -= o.lr / step * x.mask[k] * x.m[k] / (std::sqrt(x.v[k]) + 1e-3);
    }
  }
  void ExpectReference(double bound) {
    for (size_t i = 0; i < params_.size(); ++i) {
      ParamView& view = own_->views()[i];
      const std::vector<double> zeros(expected_[i].w.size());
      EXPECT_LE(UpdateError(Values(view.master()), expected_[i].w, zeros), bound) << i;
      EXPECT_LE(UpdateError(Values(view.state("m")), expected_[i].m, zeros), bound) << i;
      EXPECT_LE(UpdateError(Values(view.state("v")), expected_[i].v, zeros), bound) << i;
      EXPECT_EQ(Values(view.state("mask")), expected_[i].mask) << i;
      EXPECT_EQ(Values(params_[i]->value()), Values(view.master().To(params_[i]->dtype()))) << i;
    }
  }

  ContextPtr context_;
  std::vector<ParameterPtr> params_;
  std::vector<int> steps_;
  std::vector<Trained> expected_;
  std::unique_ptr<Own> own_;
};

TEST_F(ElementUpdateTest, IsTheReference) {
  for (const int num_threads : {1, 2}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(DTypeName(dtype));
      Make(dtype, num_threads);
      for (uint64_t step = 0; step < kSteps; ++step) Step(step);
      ExpectReference(dtype == DType::kF64 ? 1e-14 : 1e-6);
    }
  }
}

// A GPU skips the step by itself, unless the host decides.
TEST_F(ElementUpdateTest, ASkippedStepChangesNothing) {
  for (const bool on_device : {true, false}) {
    Make(DType::kBF16, 1);
    own_->rule().decides_on_device = on_device;
    Step(0);
    for (const ParameterPtr& p : params_) {
      std::vector<double> grad(static_cast<size_t>(p->shape().numel()), 1);
      if (p == params_.back()) grad.back() = std::numeric_limits<double>::infinity();
      p->set_grad(Tensor::FromVector(grad, p->shape(), context_, DType::kBF16));
    }
    own_->step();
    EXPECT_TRUE(own_->last_step().skip);
    ExpectReference(1e-6);
  }
}

// The clip factor reaches the gradient as one factor with the loss scale.
TEST_F(ElementUpdateTest, ClipsLikeTheLibrary) {
  const ContextPtr context = TestContext({.num_threads = 2});
  const std::pair<DType, double> cases[] = {
      {DType::kF64, 1e-14}, {DType::kF32, 1e-6}, {DType::kBF16, 1e-6}, {DType::kF16, 1e-6}};
  for (const auto& [dtype, bound] : cases) {
    if (TestsRunOnCuda()) continue;  // the heavy ball has no .cu file
    const ParameterPtr ours = RandomParam("w", {5}, dtype, context, 1);
    const ParameterPtr theirs = RandomParam("w", {5}, dtype, context, 1);
    const std::vector<double> start = Values(ours->value());
    HeavyBall own({{.params = {ours}, .options = {.lr = 0.1, .momentum = 0.9}}});
    Sgd sgd({theirs}, {.lr = 0.1, .momentum = 0.9});
    for (Optimizer* each : {static_cast<Optimizer*>(&own), static_cast<Optimizer*>(&sgd)}) {
      each->set_step_options({.max_norm = 0.5, .loss_scale = 2});
    }
    for (uint64_t step = 0; step < 3; ++step) {
      ours->set_grad(RandomTensor({5}, dtype, context, 7 + step, 2));
      theirs->set_grad(RandomTensor({5}, dtype, context, 7 + step, 2));
      own.step();
      sgd.step();
    }
    EXPECT_LE(UpdateError(Values(own.views()[0].master()), Values(sgd.views()[0].master()), start),
              bound)
        << DTypeName(dtype);
    if (DTypeSize(dtype) > 2) continue;
    EXPECT_EQ(Values(ours->value()), Values(theirs->value())) << DTypeName(dtype);
  }
}

TEST_F(ElementUpdateTest, TheErrorOfAMissingKernelSaysWhatToAdd) {
  Make(DType::kF32, 1);
  own_->rule().on_every_device = false;
  for (const ParameterPtr& p : params_) p->set_grad(p->value());
  if (!TestsRunOnCuda()) return static_cast<void>(own_->step());
  EXPECT_THAT(testing::MessageOf([&] { own_->step(); }),
              ::testing::HasSubstr("APOGEE_CUDA_ELEMENT(apogee::optim::CpuElement, 0)"));
}

TEST_F(ElementUpdateTest, AStateThatIsMissingIsNamed) {
  const ParameterPtr w = RandomParam("w", {5}, DType::kF32, TestContext(), 1);
  ParamView view(w);
  const ActiveParam param{&view, 0, w->value()};
  const HeavyBallElement element{0.1, 0.9};
  EXPECT_THAT(
      testing::MessageOf([&] { UpdateElements(std::span(&param, 1), 1, element, {"speed"}); }),
      ::testing::HasSubstr("\"w\" has no state \"speed\""));
}

}  // namespace element_update_test
}  // namespace apogee::optim
