// SPDX-License-Identifier: Apache-2.0

#include "apogee/tests/autograd/op_table.h"

#include <cmath>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/functions/recurrent.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/core/rng.h"
#include "apogee/nn/losses.h"
#include "apogee/tensor/ops/nn.h"
#include "apogee/tensor/ops/recurrent.h"

namespace apogee::testing {
namespace {

using OpFn = std::function<Tensor(const Tensors&)>;

class Table {
 public:
  void Add(const std::string& name, std::vector<OpInput> inputs, OpFn fn, std::string torch) {
    std::string full = name;
    for (const OpInput& input : inputs) full += input.shape.ToString();
    cases_.push_back({full, std::move(inputs), std::move(fn), std::move(torch)});
  }
  // An op of one input, at three shapes.
  void AddUnary(const std::string& name, const std::function<Tensor(const Tensor&)>& fn,
                const std::string& torch, Domain domain = Domain::kAny) {
    for (const Shape& shape : {Shape{7}, Shape{3, 5}, Shape{2, 3, 4}}) {
      Add(
          name, {{shape, domain}}, [fn](const Tensors& in) { return fn(in[0]); }, torch);
    }
  }
  // An op of two inputs, of one shape and of shapes that broadcast.
  void AddBinary(const std::string& name, Tensor (*fn)(const Tensor&, const Tensor&),
                 const std::string& torch, Domain second = Domain::kAny) {
    const auto call = [fn](const Tensors& in) { return fn(in[0], in[1]); };
    Add(name, {{{3, 5}}, {{3, 5}, second}}, call, torch);
    Add(name, {{{2, 3, 4}}, {{4}, second}}, call, torch);
    Add(name, {{{2, 3, 4}}, {{2, 1, 4}, second}}, call, torch);
    Add(name, {{{3, 1}}, {{2, 1, 4}, second}}, call, torch);
    Add(name, {{{}}, {{2, 3}, second}}, call, torch);
  }
  // A reduction over dims, of three shapes.
  void AddReduction(const std::string& name,
                    Tensor (*fn)(const Tensor&, const std::vector<int>&, bool),
                    const std::string& torch) {
    for (const bool keep : {false, true}) {
      const std::string end = keep ? ", keepdim=True)" : ")";
      const auto over = [&](const Shape& shape, const std::vector<int>& dims,
                            const std::string& text) {
        Add(
            name + "(" + text + (keep ? ", keep)" : ")"), {{shape}},
            [=](const Tensors& in) { return fn(in[0], dims, keep); }, torch + text + end);
      };
      over({7}, {0}, "(0,)");
      over({3, 5}, {-1}, "(-1,)");
      over({3, 5}, {0}, "(0,)");
      over({2, 3, 4}, {1}, "(1,)");
      over({2, 3, 4}, {0, 2}, "(0, 2)");
      over({2, 3, 4}, {2, 1}, "(2, 1)");
    }
  }
  std::vector<OpCase> Take() { return std::move(cases_); }

 private:
  std::vector<OpCase> cases_;
};

void AddElementwise(Table& table) {
  table.AddUnary("exp", autograd::Exp, "torch.exp(x)");
  table.AddUnary("log", autograd::Log, "torch.log(x)", Domain::kPositive);
  table.AddUnary("log1p", autograd::Log1p, "torch.log1p(x)", Domain::kPositive);
  table.AddUnary("sqrt", autograd::Sqrt, "torch.sqrt(x)", Domain::kPositive);
  table.AddUnary("rsqrt", autograd::Rsqrt, "torch.rsqrt(x)", Domain::kPositive);
  table.AddUnary("abs", autograd::Abs, "torch.abs(x)", Domain::kNonZero);
  table.AddUnary("square", autograd::Square, "torch.square(x)");
  table.AddUnary("softplus", autograd::Softplus, "F.softplus(x)");
  table.AddUnary("sigmoid", autograd::Sigmoid, "torch.sigmoid(x)");
  table.AddUnary("tanh", autograd::Tanh, "torch.tanh(x)");
  table.AddUnary("relu", autograd::Relu, "torch.relu(x)", Domain::kNonZero);
  table.AddUnary("gelu", autograd::Gelu, "F.gelu(x)");
  table.AddUnary("silu", autograd::Silu, "F.silu(x)");
  for (const double power : {-1.5, 0.5, 2.0, 3.0}) {
    const std::string text = std::to_string(power);
    table.AddUnary(
        "pow(" + text + ")", [power](const Tensor& x) { return autograd::Pow(x, power); },
        "torch.pow(x, " + text + ")", Domain::kPositive);
  }
  table.AddUnary(
      "clamp", [](const Tensor& x) { return autograd::Clamp(x, -0.51, 0.76); },
      "torch.clamp(x, -0.51, 0.76)");
  table.AddUnary(
      "soft_cap", [](const Tensor& x) { return autograd::SoftCap(x, 1.5); },
      "1.5 * torch.tanh(x / 1.5)");
  for (const auto& [kind, name, torch] :
       {std::tuple(Activation::kSilu, "silu", "F.silu(x) * y"),
        {Activation::kGelu, "gelu", "F.gelu(x) * y"},
        {Activation::kGeluTanh, "gelu_tanh", "F.gelu(x, approximate='tanh') * y"}}) {
    for (const Shape& shape : {Shape{7}, Shape{3, 5}, Shape{2, 3, 4}}) {
      table.Add(
          std::string("gated_") + name, {{shape}, {shape}},
          [kind = kind](const Tensors& in) { return autograd::Gated(kind, in[0], in[1]); }, torch);
    }
  }
  table.Add(
      "gated_halves", {{{2, 3, 8}}},
      [](const Tensors& in) {
        const Tensors halves = autograd::Split(in[0], 2, -1);
        return autograd::Gated(Activation::kSilu, halves[0], halves[1]);
      },
      "(lambda gate, up: F.silu(gate) * up)(*x.chunk(2, -1))");
  table.AddBinary("add", autograd::Add, "x + y");
  table.AddBinary("sub", autograd::Sub, "x - y");
  table.AddBinary("mul", autograd::Mul, "x * y");
  table.AddBinary("div", autograd::Div, "x / y", Domain::kNonZero);
  table.AddBinary("maximum", autograd::Maximum, "torch.maximum(x, y)");
  table.AddBinary("minimum", autograd::Minimum, "torch.minimum(x, y)");
  const auto where = [](const Tensors& in) {
    return autograd::Where(EveryThird({2, 3, 4}, in[0].context()), in[0], in[1]);
  };
  table.Add("where", {{{2, 3, 4}}, {{2, 3, 4}}}, where, "torch.where(every_third(2, 3, 4), x, y)");
  table.Add("where", {{{3, 1}}, {{4}}}, where, "torch.where(every_third(2, 3, 4), x, y)");
  table.Add(
      "masked_fill", {{{3, 5}}},
      [](const Tensors& in) {
        return autograd::MaskedFill(in[0], EveryThird({5}, in[0].context()), -2);
      },
      "x.masked_fill(every_third(5), -2)");
}

void AddReductions(Table& table) {
  table.AddReduction("sum", autograd::Sum, "torch.sum(x, ");
  table.AddReduction("mean", autograd::Mean, "torch.mean(x, ");
  table.AddReduction("max", autograd::Max, "torch.amax(x, ");
  table.AddReduction("min", autograd::Min, "torch.amin(x, ");
  table.AddReduction("log_sum_exp", autograd::LogSumExp, "torch.logsumexp(x, ");
  table.AddReduction(
      "var",
      [](const Tensor& x, const std::vector<int>& dims, bool keep) {
        return autograd::Var(x, dims, keep);
      },
      "var(x, ");
  for (const int dim : {0, 1, 2}) {
    const std::string end = "(x, " + std::to_string(dim) + ")";
    const auto add = [&](const std::string& name, Tensor (*fn)(const Tensor&, int),
                         const std::string& torch) {
      table.Add(
          name + std::to_string(dim), {{{2, 3, 4}}},
          [fn, dim](const Tensors& in) { return fn(in[0], dim); }, torch + end);
    };
    add("softmax", autograd::Softmax, "torch.softmax");
    add("log_softmax", autograd::LogSoftmax, "torch.log_softmax");
    add("cum_sum", autograd::CumSum, "torch.cumsum");
  }
}

void AddShapes(Table& table) {
  using autograd::Concat, autograd::Expand, autograd::Permute, autograd::Slice, autograd::Stack;
  table.Add(
      "permute", {{{2, 3, 4}}},
      [](const Tensors& in) {
        return Permute(in[0], {2, 0, -2});
      },
      "x.permute(2, 0, 1)");
  table.Add(
      "expand", {{{3, 1}}},
      [](const Tensors& in) {
        return Expand(in[0], {2, 3, 4});
      },
      "x.expand(2, 3, 4)");
  for (const int dim : {0, 1, 2}) {
    Shape longer{2, 3, 4};
    longer.Set(dim, 5);
    table.Add(
        "concat" + std::to_string(dim), {{{2, 3, 4}}, {longer}, {{2, 3, 4}}},
        [dim](const Tensors& in) { return Concat(in, dim); },
        "torch.cat((x, y, z), " + std::to_string(dim) + ")");
  }
  for (const int dim : {0, 1, -1}) {
    table.Add(
        "stack" + std::to_string(dim), {{{3, 4}}, {{3, 4}}, {{3, 4}}},
        [dim](const Tensors& in) { return Stack(in, dim); },
        "torch.stack((x, y, z), " + std::to_string(dim) + ")");
    table.Add(
        "split" + std::to_string(dim), {{{4, 6}}},
        [dim](const Tensors& in) {
          if (dim > 1) return in[0];
          const Tensors parts = autograd::Split(in[0], 2, dim);
          return autograd::Mul(parts[0], autograd::Mul(parts[1], parts[0]));
        },
        "(lambda a, b: a * b * a)(*x.chunk(2, " + std::to_string(dim) + "))");
  }
  const auto index = [](const Tensors& in, const Shape& shape, int64_t size) {
    return IndexOf(shape, size, in[0].context());
  };
  table.Add(
      "gather1", {{{3, 5}}},
      [=](const Tensors& in) {
        return autograd::Gather(in[0], 1, index(in, {3, 4}, 5));
      },
      "torch.gather(x, 1, index((3, 4), 5))");
  table.Add(
      "gather0", {{{3, 5}}},
      [=](const Tensors& in) {
        return autograd::Gather(in[0], 0, index(in, {6, 5}, 3));
      },
      "torch.gather(x, 0, index((6, 5), 3))");
  table.Add(
      "gather_repeated", {{{2, 3, 4}}},
      [=](const Tensors& in) {
        return autograd::Gather(in[0], 1, index(in, {2, 5, 1}, 3));
      },
      "torch.gather(x, 1, index((2, 5, 1), 3).expand(2, 5, 4))");
  for (const int dim : {0, 1, 2}) {
    const int64_t size = Shape{2, 3, 4}[dim];
    table.Add(
        "index_select" + std::to_string(dim), {{{2, 3, 4}}},
        [=](const Tensors& in) { return autograd::IndexSelect(in[0], dim, index(in, {6}, size)); },
        "torch.index_select(x, " + std::to_string(dim) + ", index((6,), " + std::to_string(size) +
            "))");
  }
  table.Add(
      "scatter_add", {{{3, 5}}, {{6, 5}}},
      [=](const Tensors& in) {
        return autograd::ScatterAdd(in[0], 0, index(in, {6, 5}, 3), in[1]);
      },
      "torch.scatter_add(x, 0, index((6, 5), 3), y)");
}

void AddProducts(Table& table) {
  const auto matmul = [](const Tensors& in) { return autograd::MatMul(in[0], in[1]); };
  table.Add("matmul", {{{3, 4}}, {{4, 5}}}, matmul, "x @ y");
  table.Add("matmul", {{{2, 3, 4}}, {{2, 4, 5}}}, matmul, "x @ y");
  table.Add("matmul", {{{2, 1, 3, 4}}, {{3, 4, 5}}}, matmul, "x @ y");
  table.Add("matmul", {{{3, 4}}, {{2, 4, 5}}}, matmul, "x @ y");
  const auto einsum = [&](const std::string& equation, std::vector<OpInput> inputs) {
    const std::string names = inputs.size() == 1 ? "x" : inputs.size() == 2 ? "x, y" : "x, y, z";
    table.Add(
        "einsum " + equation, std::move(inputs),
        [equation](const Tensors& in) { return autograd::Einsum(equation, in); },
        "torch.einsum('" + equation + "', " + names + ")");
  };
  einsum("ij->ji", {{{3, 4}}});
  einsum("ijk->j", {{{2, 3, 4}}});
  einsum("i,j->ij", {{{3}}, {{4}}});
  einsum("bij,bjk->bik", {{{2, 3, 4}}, {{2, 4, 5}}});
  einsum("bqhd,bkhd->bhqk", {{{2, 3, 2, 4}}, {{2, 5, 2, 4}}});
  einsum("ij,ij->", {{{3, 4}}, {{3, 4}}});
  einsum("ab,bc,cd->ad", {{{2, 3}}, {{3, 4}}, {{4, 2}}});
  einsum("ijk,l->ki", {{{2, 3, 4}}, {{3}}});
}

void AddRecurrent(Table& table) {
  struct Sizes {
    int64_t steps, samples, features, units;
  };
  for (const auto& [steps, samples, features, units] :
       {Sizes{1, 1, 2, 3}, Sizes{3, 2, 4, 3}, Sizes{4, 3, 1, 2}}) {
    const auto inputs = [&, steps = steps, samples = samples, features = features,
                         units = units](int64_t gates) {
      return std::vector<OpInput>{{{steps, samples, features}},
                                  {{gates * units, features}},
                                  {{gates * units, units}},
                                  {{gates * units}},
                                  {{gates * units}},
                                  {{samples, units}}};
    };
    const auto projected = [](const Tensors& in) { return autograd::Linear(in[0], in[1], in[3]); };
    const std::string rest = ", (y, z, u, v), True, 1, 0.0, False, False, False)[0]";
    table.Add(
        "gru", inputs(3),
        [=](const Tensors& in) { return autograd::Gru(projected(in), in[2], in[4], in[5]); },
        "torch.gru(x, w[None]" + rest);
    std::vector<OpInput> with_cell = inputs(4);
    with_cell.push_back({{samples, units}});
    table.Add(
        "lstm", with_cell,
        [=](const Tensors& in) {
          const Tensor cell = autograd::Cast(in[6], ComputeDType(in[6].dtype()));
          return autograd::Lstm(projected(in), in[2], in[4], in[5], cell).y;
        },
        "torch.lstm(x, (w[None], p[None])" + rest);
  }
}

void AddLosses(Table& table) {
  const auto loss = [&](const std::string& name,
                        const std::function<Tensor(const Tensor&, const Tensor&)>& fn,
                        const std::string& torch) {
    for (const Shape& shape : {Shape{7}, Shape{3, 5}, Shape{2, 3, 4}}) {
      table.Add(
          name, {{shape}}, [=](const Tensors& in) { return fn(in[0], FractionsLike(in[0])); },
          torch);
    }
  };
  loss("mse_loss", nn::MseLoss(), "F.mse_loss(x, fractions(x))");
  loss("l1_loss", nn::L1Loss(), "F.l1_loss(x, fractions(x))");
  loss("bce_with_logits_loss", nn::BceWithLogitsLoss(),
       "F.binary_cross_entropy_with_logits(x, fractions(x))");
  loss("kl_div_loss", nn::KlDivLoss(),
       "F.kl_div(x, fractions(x), reduction='none').sum(-1).mean()");
  loss("cosine_loss", nn::CosineLoss(), "(1 - F.cosine_similarity(x, fractions(x), -1)).mean()");
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    const std::string text = std::to_string(smoothing);
    table.Add(
        "cross_entropy(" + text + ")", {{{6, 5}}},
        [smoothing](const Tensors& in) {
          std::vector<int64_t> labels = IndexOf({6}, 5, in[0].context()).ToVector<int64_t>();
          labels[2] = -100;
          const Tensor targets = Tensor::FromVector(labels, {6}, in[0].context());
          return nn::CrossEntropyLoss{.label_smoothing = smoothing}(in[0], targets);
        },
        "F.cross_entropy(x, ignored(index((6,), 5)), label_smoothing=" + text + ")");
  }
}

void AddChannelNorms(Table& table) {
  for (const Shape& shape : {Shape{5, 6}, Shape{2, 6, 5}, Shape{3, 6, 2, 3}}) {
    const std::vector<OpInput> inputs = {{shape}, {{6}}, {{6}}};
    for (const int64_t groups : {1, 2}) {
      const std::string text = std::to_string(groups);
      table.Add(
          "group_norm(" + text + ")", inputs,
          [groups](const Tensors& in) {
            return autograd::GroupNorm(in[0], groups, in[1], in[2], 1e-5);
          },
          "F.group_norm(x, " + text + ", y, z, 1e-5)");
    }
    table.Add(
        "batch_norm", inputs,
        [](const Tensors& in) { return autograd::BatchNorm(in[0], in[1], in[2], 1e-5).y; },
        "F.batch_norm(x, None, None, y, z, True, 0.1, 1e-5)");
  }
}

}  // namespace

Tensors OpCase::Inputs(const ContextPtr& context, DType dtype) const {
  Tensors tensors;
  for (const OpInput& input : inputs) {
    const Tensor normal = Tensor::Empty(input.shape, DType::kF64, context);
    ops::FillNormal(normal, 0, 1, MakeKey(23, name + std::to_string(tensors.size())));
    std::vector<double> values = normal.ToVector<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      double& value = values[i];
      if (input.domain == Domain::kDistinct) value = static_cast<double>(i * 37 % 128) / 64 - 1;
      if (input.domain == Domain::kPositive) value = 0.25 + std::abs(value);
      if (input.domain == Domain::kNonZero) value += value < 0 ? -0.25 : 0.25;
      // Exact in every dtype, so that all compute with the same numbers.
      value = std::round(value * 64) / 64;
    }
    tensors.push_back(Tensor::FromVector(values, input.shape, context).To(dtype));
  }
  return tensors;
}

std::vector<OpCase> OpTable() {
  Table table;
  AddElementwise(table);
  AddReductions(table);
  AddShapes(table);
  AddProducts(table);
  AddRecurrent(table);
  AddLosses(table);
  AddChannelNorms(table);
  std::vector<OpCase> cases = table.Take();
  for (OpCase& op : ConvolutionCases()) cases.push_back(std::move(op));
  return cases;
}

Tensor IndexOf(const Shape& shape, int64_t size, const ContextPtr& context) {
  std::vector<int64_t> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(7 * i + 3) % size;
  return Tensor::FromVector(values, shape, context);
}

Tensor FractionsLike(const Tensor& x) {
  std::vector<double> values(static_cast<size_t>(x.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((7 * i + 3) % 16) / 16;
  return Tensor::FromVector(values, x.shape(), x.context()).To(x.dtype());
}

Tensor EveryThird(const Shape& shape, const ContextPtr& context) {
  std::vector<uint8_t> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0;
  return Tensor::FromVector(values, shape, context);
}

}  // namespace apogee::testing
