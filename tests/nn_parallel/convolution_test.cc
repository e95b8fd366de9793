// SPDX-License-Identifier: Apache-2.0

// Convolutions sharded by a plan against the whole layers on one rank.
#include "apogee/nn/convolution.h"

#include <gmock/gmock-matchers.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/activation.h"
#include "apogee/nn/chain.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/parallel/convolution.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::nn::parallel {
namespace convolution_test {

using ::apogee::testing::RandomTensor;
using ::apogee::testing::RunRanks;
using ::apogee::testing::Says;
using autograd::IsCut;
using comm::CollectiveKind;
using ::testing::AllOf;
using ::testing::HasSubstr;
using enum ParallelStyle;
using Values = std::vector<double>;

struct Task {
  std::function<std::shared_ptr<Sequential>()> make;
  ParallelPlan plan;
  Shape x;
};

// Pairs of a column and a row layer, the second of which has pools and an nn::Linear behind
// nn::Flatten; and layers that stand alone.
Task Images() {
  return {.make =
              [] {
                return std::make_shared<Sequential>(std::vector<std::shared_ptr<Module>>{
                    std::make_shared<Conv2d>(3, 12, 3, ConvOptions{.padding = 1}),
                    Function(autograd::Silu),
                    std::make_shared<Conv2d>(12, 6, Extent(3, 2), ConvOptions{.stride = {2, 1}}),
                    std::make_shared<Conv2d>(6, 12, 1, ConvOptions{}, /*bias=*/false),
                    std::make_shared<Conv2d>(12, 6, 3, ConvOptions{.padding = 1}),
                    std::make_shared<Conv2d>(6, 6, 3, ConvOptions{.same_padding = true}),
                    Function(autograd::Silu), std::make_shared<MaxPool2d>(2),
                    std::make_shared<AvgPool2d>(Extent(1, 2)), std::make_shared<Flatten>(),
                    std::make_shared<Linear>(6 * 2 * 2, 5)});
              },
          .plan = {.name = "images",
                   .rules = {{.pattern = "0", .style = kColumn},
                             {.pattern = "2", .style = kRow},
                             {.pattern = "3", .style = kColumnGather},
                             {.pattern = "4", .style = kRowSplit},
                             {.pattern = "5", .style = kColumn},
                             {.pattern = "10", .style = kRow}}},
          .x = {4, 3, 9, 9}};
}

// Sequences, and a fused layer of sections.
Task Sequences() {
  return {.make =
              [] {
                return std::make_shared<Sequential>(std::vector<std::shared_ptr<Module>>{
                    std::make_shared<Conv1d>(2, 12, 5, ConvOptions{.padding = 2}),
                    Function(autograd::Tanh),
                    std::make_shared<Conv1d>(12, 6, 3, ConvOptions{.dilation = 2}),
                    std::make_shared<AvgPool1d>(2), std::make_shared<MaxPool1d>(2)});
              },
          .plan = {.name = "sequences",
                   .rules = {{.pattern = "0", .style = kColumn, .sections = 2},
                             {.pattern = "2", .style = kRow, .sections = 2}}},
          .x = {3, 2, 15}};
}

// The largest difference, relative to the largest of `want`.
void ExpectSame(const Values& got, const Values& want, double tolerance, const std::string& what) {
  double floor = 1e-300;
  for (const double value : want) floor = std::max(floor, std::abs(value));
  SCOPED_TRACE(what);
  ExpectClose(got, want, tolerance, floor);
}

// Trains by gradient descent; returns the last output, the last gradient of x, and each whole
// weight's update.
std::map<std::string, Values> Train(const Task& task, DType dtype, const ContextPtr& context,
                                    const comm::GroupPtr& group) {
  constexpr int kSteps = 3;
  const auto model = task.make();
  model->Initialize(context, {.seed = 7, .dtype = dtype});
  std::map<std::string, Values> start, result;
  for (const auto& p : model->Parameters()) start[p->name()] = p->data().ToVector<double>();
  std::unique_ptr<TensorParallel> parallel;
  if (group != nullptr) {
    parallel = std::make_unique<TensorParallel>(*model, task.plan, group);
    parallel->Apply();
  }
  Parameter x("x", RandomTensor(task.x, "x", context, 1, dtype));
  for (int step = 0; step < kSteps; ++step) {
    const Tensor y = (*model)(x.value());
    x.zero_grad();
    autograd::Backward(y, {.grad = RandomTensor(y.shape(), "dy", context, 1, dtype)});
    result["y"] = y.Detach().ToVector<double>();
    result["dx"] = x.grad().ToVector<double>();
    for (const auto& p : model->Parameters()) {
      Values values = p->data().ToVector<double>();
      const Values grad = p->grad().ToVector<double>();
      for (size_t i = 0; i < values.size(); ++i) values[i] -= 0.01 * grad[i];
      p->data().SetValues(values);
      p->zero_grad();
    }
  }
  for (const auto& p : model->Parameters()) {
    Values& update = result[p->name()];
    update = (parallel != nullptr ? parallel->Whole(*p) : p->data()).ToVector<double>();
    const Values& before = start[p->name()];
    for (size_t i = 0; i < update.size(); ++i) update[i] -= before[i];
  }
  return result;
}

TEST(ParallelConvolutionTest, TrainsAsOnOneRank) {
  for (const Task& task : {Images(), Sequences()}) {
    for (const int size : {2, 3}) {
      RunRanks(size, [&](comm::World& world) {
        const auto want = Train(task, DType::kF64, world.context(), nullptr);
        const auto got = Train(task, DType::kF64, world.context(), world.group());
        ASSERT_EQ(got.size(), want.size());
        for (const auto& [name, values] : want) {
          ExpectSame(got.at(name), values, 1e-12, task.plan.name + " " + name);
        }
      });
    }
  }
}

// Where channels are cut, and what is communicated: the row layer's output forward, the column
// layer's input backward.
TEST(ParallelConvolutionTest, CutsAndCommunicates) {
  RunRanks(2, [](comm::World& world) {
    Container model;
    const auto up = model.Register("up", std::make_shared<Conv2d>(3, 8, 3));
    const auto down = model.Register("down", std::make_shared<Conv2d>(8, 5, 1));
    model.Initialize(world.context(), {.seed = 1});
    TensorParallel parallel(
        model,
        {.name = "pair",
         .rules = {{.pattern = "up", .style = kColumn}, {.pattern = "down", .style = kRow}}},
        world.group());
    parallel.Apply();
    EXPECT_EQ(up->weight()->shape(), Shape({4, 3, 3, 3}));
    EXPECT_EQ(up->bias()->shape(), Shape({4}));
    EXPECT_EQ(down->weight()->shape(), Shape({5, 4, 1, 1}));
    EXPECT_EQ(down->bias()->shape(), Shape({5}));
    Parameter x("x", RandomTensor({2, 3, 5, 6}, "x", world.context(), 1, DType::kF32));
    const Tensor h = autograd::MaxPool2d((*up)(x.value()), 1);
    EXPECT_EQ(h.shape(), Shape({2, 4, 3, 4}));
    EXPECT_TRUE(IsCut(h));
    const Tensor y = (*down)(h);
    EXPECT_FALSE(IsCut(y));
    autograd::Backward(y, {.grad = RandomTensor(y.shape(), "dy", world.context(), 1, DType::kF32)});
    const comm::Traffic& traffic = world.group()->traffic();
    EXPECT_EQ(traffic.calls(CollectiveKind::kAllReduce), 2);
    EXPECT_EQ(traffic.bytes(CollectiveKind::kAllReduce), 4 * (y.numel() + x.shape().numel()));
    EXPECT_EQ(traffic.total_calls(), 2);

    const Tensor whole = GatherChannels(h, world.group());
    EXPECT_EQ(whole.shape(), Shape({2, 8, 3, 4}));
    EXPECT_FALSE(IsCut(whole));
    const Tensor again = SplitChannels(whole, world.group());
    EXPECT_TRUE(IsCut(again));
    EXPECT_EQ(again.Detach().ToVector<float>(), h.Detach().ToVector<float>());
    EXPECT_THAT([&] { SplitChannels(y, world.group()); },
                Says(HasSubstr("2 ranks do not divide the channels of [2, 5, 3, 4]")));
  });
}

// Addends are rounded after their sum; the bias's gradient has the dtype its owner asks for.
TEST(ParallelConvolutionTest, RoundsOnce) {
  RunRanks(2, [](comm::World& world) {
    Container model;
    const auto conv = model.Register("conv", std::make_shared<Conv1d>(2, 1, 1));
    model.Initialize(world.context(), {.seed = 1, .dtype = DType::kBF16});
    TensorParallel parallel(model, {.name = "row", .rules = {{.pattern = "conv", .style = kRow}}},
                            world.group());
    parallel.Apply();
    // 256.5 on rank 0 and 0.75 on rank 1: 258 in bf16, and 256 if each addend were rounded.
    conv->weight()->data().Fill(1.5);
    conv->bias()->data().Fill(0);
    conv->bias()->set_grad_dtype(DType::kF32);
    const Tensor x =
        Tensor::Full({500, 1, 1}, DType::kBF16, world.rank() == 0 ? 171 : 0.5, world.context());
    const Tensor y = (*conv)(x);
    EXPECT_EQ(y.Detach().ToVector<double>()[0], 258);
    autograd::Backward(
        y, {.grad = Tensor::Full({500, 1, 1}, DType::kBF16, 1.0078125, world.context())});
    ASSERT_EQ(conv->bias()->grad().dtype(), DType::kF32);
    EXPECT_EQ(conv->bias()->grad().ToVector<double>()[0], 503.90625);
  });
}

TEST(ParallelConvolutionTest, SaysWhatItCannotShard) {
  Container model;
  model.Register("depthwise", std::make_shared<Conv2d>(8, 8, 3, ConvOptions{.groups = 8}));
  model.Register("up", std::make_shared<ConvTranspose2d>(8, 4, 2, ConvOptions{.stride = 2}));
  model.Register("odd", std::make_shared<Conv1d>(8, 7, 3));
  model.Register("pool", std::make_shared<MaxPool2d>(2));
  const auto problem = [&](const char* pattern, ParallelStyle style) {
    const auto problems =
        PlanProblems(model, {.name = "mine", .rules = {{.pattern = pattern, .style = style}}}, 2);
    return problems.empty() ? "" : problems[0];
  };
  EXPECT_THAT(
      problem("depthwise", kColumn),
      AllOf(HasSubstr("depthwise is a convolution of 8 groups"), HasSubstr("leave it whole")));
  EXPECT_THAT(problem("up", kRow), HasSubstr("up is a transposed convolution"));
  EXPECT_THAT(problem("odd", kColumnGather), HasSubstr("tp 2 does not divide dim 0"));
  EXPECT_EQ(problem("odd", kRowSplit), "");
  EXPECT_THAT(problem("pool", kColumn),
              HasSubstr("pool is not an nn::Linear, nn::Conv1d or nn::Conv2d"));
  EXPECT_THAT(problem("odd", kVocabulary), HasSubstr("odd is not an nn::Embedding or nn::Linear"));
  EXPECT_THAT(problem("other", kColumn), HasSubstr("layers here are depthwise, up, odd"));
}

// Layers between the two that need whole channels.
TEST(ParallelConvolutionTest, RefusesCutChannels) {
  RunRanks(2, [](comm::World& world) {
    Container model;
    const auto up = model.Register("up", std::make_shared<Conv2d>(3, 8, 3));
    const auto next = model.Register("next", std::make_shared<Conv2d>(8, 8, 3));
    const auto drop = model.Register("drop", std::make_shared<Dropout>(0.5));
    const auto named = model.Register("named", std::make_shared<Dropout>(0.5));
    model.Initialize(world.context(), {.seed = 1});
    const ParallelPlan plan{
        .name = "mine",
        .rules = {{.pattern = "up", .style = kColumn}, {.pattern = "named", .style = kDropout}}};
    EXPECT_THAT(
        [&] { TensorParallel(model, plan, world.group(), {.cut_sequence = true}); },
        Says(AllOf(HasSubstr("shards up, a convolution"), HasSubstr("sequence parallelism"))));
    TensorParallel parallel(model, plan, world.group());
    parallel.Apply();
    const Tensor h = (*up)(Tensor::Full({2, 3, 5, 5}, DType::kF32, 1, world.context()));
    EXPECT_THAT([&] { (*next)(h); },
                Says(AllOf(HasSubstr("convolution \"next\""),
                           HasSubstr("only this rank's channels"), HasSubstr("kColumnGather"))));
    EXPECT_THAT([&] { (*drop)(h); }, Says(HasSubstr("dropout \"drop\"")));
    EXPECT_THAT([&] { (*named)(h); },
                Says(AllOf(HasSubstr("dropout \"named\""), HasSubstr("nn::Flatten"))));
    EXPECT_NO_THROW((*named)(Flatten()(h)));
    model.Train(false);
    EXPECT_NO_THROW((*named)(h));
  });
}

// The mask behind Flatten is the one of one rank.
TEST(ParallelConvolutionTest, DropsOutBehindFlatten) {
  RunRanks(2, [](comm::World& world) {
    const auto run = [&](bool parallel) {
      Sequential model(std::vector<std::shared_ptr<Module>>{
          std::make_shared<Conv2d>(3, 8, 3), std::make_shared<Flatten>(),
          std::make_shared<Dropout>(0.5), std::make_shared<Linear>(8 * 3 * 3, 4)});
      model.Initialize(world.context(), {.seed = 1, .dtype = DType::kF64});
      std::unique_ptr<TensorParallel> cut;
      if (parallel) {
        cut = std::make_unique<TensorParallel>(
            model,
            ParallelPlan{.name = "mine",
                         .rules = {{.pattern = "0", .style = kColumn},
                                   {.pattern = "2", .style = kDropout},
                                   {.pattern = "3", .style = kRow}}},
            world.group());
        cut->Apply();
      }
      return model(RandomTensor({2, 3, 5, 5}, "x", world.context(), 1, DType::kF64))
          .Detach()
          .ToVector<double>();
    };
    ExpectSame(run(true), run(false), 1e-12, "y");
  });
}

}  // namespace convolution_test
}  // namespace apogee::nn::parallel
