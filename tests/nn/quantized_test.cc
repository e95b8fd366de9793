// SPDX-License-Identifier: Apache-2.0

// Weights in few bits: what layers read, what graphs keep, parts of ranks, and what is refused.
#include <gmock/gmock-matchers.h>

#include <limits>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/nn/lora/lora.h"
#include "apogee/nn/parallel/shard.h"
#include "apogee/nn/quantized/quantized_weight.h"
#include "apogee/tensor/kernels/block_codes.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"

namespace apogee::nn {
namespace quantized_test {

using parallel::TensorShard;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;
using Values = std::vector<double>;

// "up" and "down" with an odd number of elements, and the output "lm_head".
class Net : public Module {
 public:
  explicit Net(WeightLayout layout = WeightLayout::kOutIn, int64_t width = 37) {
    up_ = Register("up", std::make_shared<Linear>(width, 29, LinearOptions{.layout = layout}));
    down_ = Register("down", std::make_shared<Linear>(29, width, LinearOptions{.layout = layout}));
    head_ = Register("lm_head", std::make_shared<Linear>(width, 3));
  }
  Tensor Forward(const Tensor& x) override { return (*head_)((*down_)((*up_)(x))); }
  Linear& up() { return *up_; }

 private:
  std::shared_ptr<Linear> up_, down_, head_;
};

Values ValuesOf(const Tensor& tensor) { return tensor.ToVector<double>(); }

// A quantized layer computes what the layer with the decoded weight computes, to the bit; forward
// and backward.
TEST(QuantizedTest, LayersReadTheDecodedWeight) {
  for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
    for (const BlockCodeKind kind : {BlockCodeKind::kNf4, BlockCodeKind::kInt8}) {
      const ContextPtr context = TestContext();
      Net quantized(layout), plain(layout);
      quantized.Initialize(context, {.seed = 3});
      plain.Initialize(context, {.seed = 3});
      QuantizeLinears(quantized, {.kind = kind});
      ASSERT_EQ(quantized.QuantizedWeights().size(), 2U);
      for (const auto& weight : quantized.QuantizedWeights()) {
        const ParameterPtr own = plain.FindParameter(weight->weight()->name());
        EXPECT_NE(ValuesOf(own->data()), ValuesOf(weight->weight()->data()));
        own->data().CopyFrom(weight->weight()->data());
        EXPECT_FALSE(weight->weight()->requires_grad() || weight->stored()->requires_grad());
        EXPECT_EQ(weight->stored()->data().numel(), weight->codes().bytes());
      }
      EXPECT_EQ(quantized.num_parameters(), plain.num_parameters());
      const Tensor x = RandomTensor({5, 37}, "x", context).To(DType::kF32);
      Values grads[2], losses[2];
      for (int i = 0; i < 2; ++i) {
        Net& net = i == 0 ? quantized : plain;
        Parameter input("input", x);
        const Tensor loss = autograd::Sum(autograd::Square(net(input.value())), {0, 1});
        autograd::Backward(loss);
        losses[i] = ValuesOf(loss.Detach());
        grads[i] = ValuesOf(input.grad());
        EXPECT_TRUE(net.up().bias()->has_grad());
      }
      EXPECT_EQ(losses[0], losses[1]);
      EXPECT_EQ(grads[0], grads[1]);
    }
  }
}

// Between forward and backward the graph has no decoded weight.
TEST(QuantizedTest, GraphsKeepTheBytes) {
  const ContextPtr context = TestContext();
  Net net(WeightLayout::kOutIn, /*width=*/997);
  net.Initialize(context, {.seed = 3});
  QuantizeLinears(net, {});
  const MemoryLedger& ledger = context->ledger();
  Parameter input("input", RandomTensor({1, 997}, "x", context).To(DType::kF32));
  const int64_t before = ledger.live_total_bytes();
  const Tensor loss = autograd::Sum(net(input.value()), {0, 1});
  const int64_t decoded = 4 * 997 * 29;
  EXPECT_LT(ledger.live_total_bytes() - before, decoded / 2);
  EXPECT_EQ(ledger.live_bytes(MemoryCategory::kWorkspace), 0);
  autograd::Backward(loss, {.retain_graph = true});
  const Values first = ValuesOf(input.grad());
  input.zero_grad();
  autograd::Backward(loss);
  EXPECT_EQ(ValuesOf(input.grad()), first);
}

TEST(QuantizedTest, ValuesMayComeLater) {
  const ContextPtr context = TestContext();
  Net now, lazy, later;
  now.Initialize(context, {.seed = 3});
  lazy.InitializeLazily(context, {.seed = 3});
  for (Net* net : {&now, &lazy, &later}) QuantizeLinears(*net, {});
  EXPECT_FALSE(later.up().weight()->has_value());
  later.Initialize(context, {.seed = 3});
  EXPECT_TRUE(lazy.up().weight()->is_lazy());
  EXPECT_FALSE(now.up().weight()->is_lazy() || later.up().weight()->is_lazy());
  const Values want = ValuesOf(now.up().weight()->data());
  EXPECT_EQ(ValuesOf(lazy.up().weight()->data()), want);
  EXPECT_EQ(ValuesOf(later.up().weight()->data()), want);
}

// The part of any rank has the values of the whole, however the cut meets blocks and bytes.
TEST(QuantizedTest, PartsAreThoseOfTheWhole) {
  const ContextPtr context = TestContext();
  struct Case {
    TensorShard shard;
    Shape shape;
    int tp;
  };
  const Case cases[] = {{{.dim = 0}, {6, 37}, 3},
                        {{.dim = 1}, {37, 6}, 3},
                        {{.dim = 1}, {64, 256}, 2},
                        {{.dim = 0, .sections = 3}, {18, 11}, 2},
                        {{.dim = 1, .sections = 3}, {7, 18}, 2},
                        {{.dim = 1, .section_units = {4, 2, 2}}, {9, 40}, 2},
                        {{.dim = 0, .pad = true}, {5, 33}, 4},
                        {{.dim = 1}, {300, 130}, 2}};
  for (const Case& c : cases) {
    for (const BlockCodeKind kind : {BlockCodeKind::kNf4, BlockCodeKind::kInt8}) {
      for (const bool nested : {true, false}) {
        for (int rank = 0; rank < c.tp; ++rank) {
          const auto weight =
              std::make_shared<Parameter>("w", RandomTensor(c.shape, "w", context).To(DType::kF32));
          QuantizedWeight quantized(weight, {.kind = kind, .nested = nested});
          const Values want = ValuesOf(parallel::CutLocal(c.shard, weight->data(), rank, c.tp));
          const Layout part = parallel::LayoutOf(c.shard, c.shape, rank, c.tp);
          const Layout stored = quantized.StoredLayout(part);
          const std::vector<uint8_t> whole = quantized.stored()->data().ToVector<uint8_t>();
          std::vector<uint8_t> own;
          for (const Segment& segment : stored.segments()) {
            own.insert(own.end(), whole.begin() + segment.begin,
                       whole.begin() + segment.begin + segment.length);
          }
          const Shape local = parallel::LocalShape(c.shard, c.shape, c.tp);
          quantized.SetPart(part, local, Tensor::FromVector(own, {std::ssize(own)}, context));
          EXPECT_EQ(weight->shape(), local);
          EXPECT_TRUE(weight->is_part() && quantized.stored()->is_part());
          EXPECT_EQ(ValuesOf(weight->data()), want) << c.shape << " rank " << rank;
        }
      }
    }
  }
}

TEST(QuantizedTest, GivesTheWeightsBack) {
  const ContextPtr context = TestContext();
  Net net;
  net.Initialize(context, {.seed = 3});
  QuantizeLinears(net, {.skip = {"down"}});
  ASSERT_EQ(net.QuantizedWeights().size(), 1U);
  const Values decoded = ValuesOf(net.up().weight()->data());
  net.RestoreQuantized();
  EXPECT_TRUE(net.QuantizedWeights().empty());
  EXPECT_EQ(ValuesOf(net.FindParameter("up.weight")->data()), decoded);
  net.FindParameter("up.weight")->data().Fill(1);
  EXPECT_EQ(ValuesOf(net.up().weight()->data()), Values(decoded.size(), 1));
}

TEST(QuantizedTest, AdaptersOnIt) {
  const ContextPtr context = TestContext();
  Net net;
  net.Initialize(context, {.seed = 3});
  AddLora(net, {.rank = 2, .modules_to_save = {"down"}, .quantize = QuantizeOptions{}});
  EXPECT_EQ(net.QuantizedWeights().size(), 1U);  // "down" is trained
  for (const ParameterPtr& parameter : net.Parameters()) {
    const std::string& name = parameter->name();
    const bool trained = name.find("lora_") != std::string::npos || name.starts_with("down.");
    EXPECT_EQ(parameter->requires_grad(), trained) << name;
  }
  EXPECT_THAT([&] { MergedAdapter(net, "default"); },
              Says(HasSubstr("codes have no room for a sum")));
  // The adapter is added to the decoded weight.
  const Values before = ValuesOf(net(RandomTensor({2, 37}, "x", context).To(DType::kF32)).Detach());
  net.RestoreQuantized();
  EXPECT_EQ(ValuesOf(net(RandomTensor({2, 37}, "x", context).To(DType::kF32)).Detach()), before);
  const MergedAdapter merged(net, "default");
}

TEST(QuantizedTest, Refuses) {
  const ContextPtr context = TestContext();
  Net net;
  net.Initialize(context, {.seed = 3});
  const Values up = ValuesOf(net.up().weight()->data());
  EXPECT_THAT([&] { QuantizeLinears(net, {.skip = {"dwon"}}); },
              Says(AllOf(HasSubstr("dwon"), HasSubstr("did you mean \"down\"?"))));
  EXPECT_THAT([&] { AddLora(net, {.rank = 99, .quantize = QuantizeOptions{}}); },
              Says(HasSubstr("rank must be in [1, 29]")));
  RmsNorm norm(4);
  EXPECT_THAT([&] { QuantizeLinears(norm, {}); }, Says(HasSubstr("no nn::Linear")));
  EXPECT_THAT([&] { net.QuantizeParameter(net.up().weight(), {}); },
              Says(HasSubstr("another module's")));
  Net broken;
  broken.Initialize(context, {.seed = 3});
  broken.FindParameter("down.weight")->data().Fill(std::numeric_limits<double>::infinity());
  EXPECT_THAT([&] { QuantizeLinears(broken, {}); },
              Says(AllOf(HasSubstr("down.weight"), HasSubstr("not finite"))));
  for (Net* unchanged : {&net, &broken}) {
    EXPECT_TRUE(unchanged->QuantizedWeights().empty());
    EXPECT_EQ(ValuesOf(unchanged->up().weight()->data()), up);
    EXPECT_TRUE(unchanged->up().weight()->requires_grad());
  }
  AddLora(net, {.rank = 2, .quantize = QuantizeOptions{}});
  EXPECT_THAT([&] { AddLora(net, {.rank = 2, .quantize = QuantizeOptions{}}, "other"); },
              Says(HasSubstr("quantized already")));
  EXPECT_THAT([&] { AddLora(net, {.rank = 2, .modules_to_save = {"up"}}, "other"); },
              Says(AllOf(HasSubstr("up.weight"), HasSubstr("it cannot be trained"))));
  EXPECT_THAT(
      [&] {
        net.up().weight()->set_value(Tensor::Zeros({29, 37}, DType::kF32, context));
      },
      Says(HasSubstr("takes no other value")));
  EXPECT_EQ(Message(ParseQuantize("nf5").status()),
            "quantize is \"nf5\", must be none, nf4 or int8");
}

}  // namespace quantized_test
}  // namespace apogee::nn
