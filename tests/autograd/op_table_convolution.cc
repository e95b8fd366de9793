// SPDX-License-Identifier: Apache-2.0

// The convolutions and pools of the op table.
#include <utility>

#include "apogee/autograd/functions/convolution.h"
#include "apogee/tests/autograd/op_table.h"

namespace apogee::testing {
namespace {

using autograd::ConvOptions;
using autograd::Extent;
using autograd::PoolOptions;

using ConvFn = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&);

struct Cases {
  std::vector<OpCase> list;

  // Of x, weight and, if `bias` is not 0, a bias of that many elements.
  void Conv(const std::string& name, ConvFn fn, const Shape& x, const Shape& weight, int64_t bias,
            const ConvOptions& options, const std::string& torch) {
    std::vector<OpInput> inputs{{x}, {weight}};
    if (bias > 0) inputs.push_back({Shape{bias}});
    list.push_back({name + "(" + torch + ")", std::move(inputs),
                    [=](const Tensors& in) {
                      return fn(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), options);
                    },
                    "F." + name + "(x, y, " + (bias > 0 ? "z" : "None") + ", " + torch + ")"});
  }
  void Pool(const std::string& name, const std::function<Tensor(const Tensor&)>& fn, const Shape& x,
            const std::string& torch) {
    list.push_back({name + "(" + torch + ")",
                    {{x, Domain::kDistinct}},
                    [=](const Tensors& in) { return fn(in[0]); },
                    "F." + name + "(x, " + torch + ")"});
  }
};

void AddConvolutions(Cases& cases) {
  const auto conv2d = [&](const Shape& x, const Shape& weight, int64_t bias,
                          const ConvOptions& options, const std::string& torch) {
    cases.Conv("conv2d", autograd::Conv2d, x, weight, bias, options, torch);
  };
  conv2d({2, 3, 7, 5}, {4, 3, 3, 3}, 4, {.padding = 1}, "padding=1");
  conv2d({1, 4, 9, 8}, {6, 2, 3, 2}, 6,
         {.stride = {2, 1}, .padding = {1, 0}, .dilation = {2, 3}, .groups = 2},
         "stride=(2, 1), padding=(1, 0), dilation=(2, 3), groups=2");
  conv2d({2, 4, 6, 7}, {4, 1, 3, 3}, 0, {.same_padding = true, .dilation = 2, .groups = 4},
         "padding='same', dilation=2, groups=4");
  conv2d({3, 5, 4, 3}, {2, 5, 1, 1}, 2, {}, "stride=1");
  conv2d({2, 3, 9, 9}, {2, 3, 5, 4}, 2, {.stride = 3, .padding = 2}, "stride=3, padding=2");
  const auto conv1d = [&](const Shape& x, const Shape& weight, int64_t bias,
                          const ConvOptions& options, const std::string& torch) {
    cases.Conv("conv1d", autograd::Conv1d, x, weight, bias, options, torch);
  };
  conv1d({2, 3, 11}, {4, 3, 3}, 4, {.stride = 2}, "stride=2");
  conv1d({1, 4, 9}, {6, 2, 2}, 6, {.padding = 2, .dilation = 3, .groups = 2},
         "padding=2, dilation=3, groups=2");
  conv1d({3, 2, 7}, {2, 1, 5}, 0, {.same_padding = true, .groups = 2}, "padding='same', groups=2");
}

void AddTransposed(Cases& cases) {
  const auto conv2d = [&](const Shape& x, const Shape& weight, int64_t bias,
                          const ConvOptions& options, const std::string& torch) {
    cases.Conv("conv_transpose2d", autograd::ConvTranspose2d, x, weight, bias, options, torch);
  };
  conv2d({2, 3, 4, 5}, {3, 2, 3, 3}, 2, {.stride = 2, .padding = 1, .output_padding = 1},
         "stride=2, padding=1, output_padding=1");
  conv2d({1, 4, 3, 4}, {4, 3, 2, 3}, 6,
         {.stride = {1, 2},
          .padding = {0, 1},
          .dilation = {2, 1},
          .groups = 2,
          .output_padding = {0, 1}},
         "stride=(1, 2), padding=(0, 1), dilation=(2, 1), groups=2, output_padding=(0, 1)");
  conv2d({2, 4, 5, 3}, {4, 1, 3, 2}, 0, {.groups = 4}, "groups=4");
  const auto conv1d = [&](const Shape& x, const Shape& weight, int64_t bias,
                          const ConvOptions& options, const std::string& torch) {
    cases.Conv("conv_transpose1d", autograd::ConvTranspose1d, x, weight, bias, options, torch);
  };
  conv1d({2, 3, 5}, {3, 4, 4}, 4, {.stride = 3, .output_padding = 2}, "stride=3, output_padding=2");
  conv1d({1, 4, 7}, {4, 1, 3}, 2, {.padding = 1, .dilation = 2, .groups = 2},
         "padding=1, dilation=2, groups=2");
  conv1d({3, 2, 1}, {2, 3, 5}, 0, {.stride = 2}, "stride=2");
}

void AddPools(Cases& cases) {
  struct Case {
    Shape x;
    Extent kernel;
    PoolOptions options;
    std::string torch;
  };
  const Case images[] = {{{2, 3, 7, 5}, 3, {.stride = {2}, .padding = 1}, "3, stride=2, padding=1"},
                         {{1, 2, 6, 7}, 2, {}, "2"},
                         {{2, 2, 9, 7},
                          {4, 2},
                          {.stride = Extent(1, 3), .padding = {2, 0}},
                          "(4, 2), stride=(1, 3), padding=(2, 0)"}};
  for (const Case& each : images) {
    PoolOptions not_counted = each.options;
    not_counted.count_padding = false;
    const auto average = [kernel = each.kernel](const PoolOptions& options) {
      return [=](const Tensor& x) { return autograd::AvgPool2d(x, kernel, options); };
    };
    cases.Pool(
        "max_pool2d",
        [each](const Tensor& x) { return autograd::MaxPool2d(x, each.kernel, each.options); },
        each.x, each.torch);
    cases.Pool("avg_pool2d", average(each.options), each.x, each.torch);
    cases.Pool("avg_pool2d", average(not_counted), each.x,
               each.torch + ", count_include_pad=False");
  }
  const Case sequences[] = {
      {{2, 3, 9}, 3, {.stride = {2}, .padding = 1}, "3, stride=2, padding=1"},
      {{1, 2, 8}, 2, {}, "2"},
      {{2, 2, 7}, 4, {.stride = {1}, .padding = 2}, "4, stride=1, padding=2"}};
  for (const Case& each : sequences) {
    cases.Pool(
        "max_pool1d",
        [each](const Tensor& x) { return autograd::MaxPool1d(x, each.kernel.width, each.options); },
        each.x, each.torch);
    cases.Pool(
        "avg_pool1d",
        [each](const Tensor& x) { return autograd::AvgPool1d(x, each.kernel.width, each.options); },
        each.x, each.torch);
  }
}

}  // namespace

std::vector<OpCase> ConvolutionCases() {
  Cases cases;
  AddConvolutions(cases);
  AddTransposed(cases);
  AddPools(cases);
  return std::move(cases.list);
}

}  // namespace apogee::testing
