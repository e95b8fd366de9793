// SPDX-License-Identifier: Apache-2.0

// Convolutions by oneDNN. It chooses the layouts that are fastest for it, mostly blocks of
// channels; our plain tensors are reordered before and after.
#include "apogee/tensor/cpu/convolution/convolution_paths.h"

#ifdef APOGEE_USE_ONEDNN

#include <array>
#include <unordered_map>

#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/cpu/onednn/primitives.h"

namespace apogee::cpu {
namespace {

constexpr const char* kWhat = "a convolution";

enum class Pass { kForward, kInput, kWeight };

// One call: the operands x, weight and y, of which the pass computes one.
struct Call {
  Pass pass;
  DType dtype, result_dtype;
  std::array<void*, 3> operands;
  const void* bias;
  const ConvSizes& sizes;

  // The operand that the pass computes.
  size_t result() const { return pass == Pass::kForward ? 2 : pass == Pass::kInput ? 0 : 1; }
  DType OperandDType(size_t i) const { return i == result() ? result_dtype : dtype; }
};

// Everything that a compiled primitive depends on.
struct Key {
  Pass pass;
  DType dtype, result_dtype;
  bool has_bias;
  int num_threads;
  std::array<int64_t, 16> sizes;

  auto operator<=>(const Key&) const = default;
};

Key KeyOf(int num_threads, const Call& call) {
  const ConvSizes& s = call.sizes;
  const Window& w = s.window;
  return {call.pass,
          call.dtype,
          call.result_dtype,
          call.bias != nullptr,
          num_threads,
          {s.batch, s.groups, s.in_channels, s.out_channels, w.in[0], w.in[1], w.out[0], w.out[1],
           w.kernel[0], w.kernel[1], w.stride[0], w.stride[1], w.padding[0], w.padding[1],
           w.dilation[0], w.dilation[1]}};
}

bool Supports(const Call& call) {
  if (call.dtype == DType::kF32) return call.result_dtype == DType::kF32;
  return call.dtype == DType::kBF16 &&
         (call.result_dtype == DType::kBF16 || call.result_dtype == DType::kF32);
}

// An operand in our layout and in the primitive's. Each call sets the pointers.
struct Operand {
  dnnl::memory plain, inner;
  dnnl::reorder reorder;  // empty: both layouts are the same
  dnnl::memory scratchpad;
  int argument = 0;

  int64_t inner_bytes() const {
    return reorder ? static_cast<int64_t>(inner.get_desc().get_size()) : 0;
  }
};

// A primitive with its operands.
struct Convolution {
  dnnl::primitive primitive;  // empty: oneDNN has nothing fast for this key
  std::array<Operand, 3> operands;
  dnnl::memory bias, scratchpad;
  int64_t scratchpad_bytes = 0;  // the largest of all
};

// Layouts of x, weight and y: ours, and ones that oneDNN may choose, with the dtypes of this pass
// and with those of a forward pass.
struct Layouts {
  std::array<dnnl::memory::desc, 3> plain, any, forward;
  dnnl::memory::desc bias;
  dnnl::memory::dims stride, dilation, padding;
};

Layouts LayoutsOf(const Call& call) {
  using dims = dnnl::memory::dims;
  using tag = dnnl::memory::format_tag;
  const ConvSizes& s = call.sizes;
  const Window& w = s.window;
  Layouts layouts;
  dims weight{s.out_channels, s.in_channels / s.groups, w.kernel[0], w.kernel[1]};
  if (s.groups > 1) {
    weight[0] /= s.groups;
    weight.insert(weight.begin(), s.groups);
  }
  const std::array<dims, 3> sizes{dims{s.batch, s.in_channels, w.in[0], w.in[1]}, weight,
                                  dims{s.batch, s.out_channels, w.out[0], w.out[1]}};
  for (size_t i = 0; i < 3; ++i) {
    const auto type = TypeOf(call.OperandDType(i));
    const tag plain = sizes[i].size() == 5 ? tag::abcde : tag::abcd;
    layouts.plain[i] = {sizes[i], type, plain};
    layouts.any[i] = {sizes[i], type, tag::any};
    const auto in_forward = call.pass == Pass::kForward ? type : TypeOf(call.dtype);
    layouts.forward[i] = {sizes[i], in_forward, tag::any};
  }
  layouts.bias = {{s.out_channels}, TypeOf(call.dtype), tag::a};
  layouts.stride = {w.stride[0], w.stride[1]};
  layouts.dilation = {w.dilation[0] - 1, w.dilation[1] - 1};
  layouts.padding = {w.padding[0], w.padding[1]};
  return layouts;
}

// Adds the operands that the description of the primitive asks for.
void AddOperands(Convolution& made, const Layouts& layouts,
                 const std::array<dnnl::memory::desc, 3>& inner,
                 const std::array<int, 3>& arguments, size_t result, const dnnl::engine& engine) {
  const dnnl::primitive_attr attr = UserScratchpad();
  for (size_t i = 0; i < 3; ++i) {
    Operand& operand = made.operands[i];
    operand.argument = arguments[i];
    operand.plain = dnnl::memory(layouts.plain[i], engine, nullptr);
    if (inner[i] == layouts.plain[i]) continue;
    operand.inner = dnnl::memory(inner[i], engine, nullptr);
    const bool out = i == result;
    const dnnl::reorder::primitive_desc desc(engine, out ? inner[i] : layouts.plain[i], engine,
                                             out ? layouts.plain[i] : inner[i], attr);
    operand.reorder = dnnl::reorder(desc);
    operand.scratchpad = dnnl::memory(desc.scratchpad_desc(), engine, nullptr);
    made.scratchpad_bytes =
        std::max(made.scratchpad_bytes, static_cast<int64_t>(desc.scratchpad_desc().get_size()));
  }
}

template <typename Primitive, typename Desc>
void SetPrimitive(Convolution& made, const Desc& desc, const dnnl::engine& engine) {
  made.scratchpad = dnnl::memory(desc.scratchpad_desc(), engine, nullptr);
  made.scratchpad_bytes =
      std::max(made.scratchpad_bytes, static_cast<int64_t>(desc.scratchpad_desc().get_size()));
  made.primitive = Primitive(desc);
}

void Compile(Convolution& made, const Call& call, const dnnl::engine& engine,
             const MakingPrimitives& making) {
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  const Layouts l = LayoutsOf(call);
  const dnnl::primitive_attr attr = UserScratchpad();
  const auto& [x, weight, y] = l.any;
  const auto training = dnnl::prop_kind::forward_training;
  using Forward = dnnl::convolution_forward;
  // The gradients' descriptions need the forward one, too.
  const auto& [fx, fweight, fy] = l.forward;
  const Forward::primitive_desc forward(
      call.bias != nullptr ? Forward::desc(training, kDirect, fx, fweight, l.bias, fy, l.stride,
                                           l.dilation, l.padding, l.padding)
                           : Forward::desc(training, kDirect, fx, fweight, fy, l.stride, l.dilation,
                                           l.padding, l.padding),
      attr, engine, /*allow_empty=*/true);
  if (!IsFast(forward, making)) return;
  if (call.pass == Pass::kForward) {
    AddOperands(made, l, {forward.src_desc(), forward.weights_desc(), forward.dst_desc()},
                {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, 2, engine);
    if (call.bias != nullptr) made.bias = dnnl::memory(l.bias, engine, nullptr);
    return SetPrimitive<Forward>(made, forward, engine);
  }
  if (call.pass == Pass::kInput) {
    using Backward = dnnl::convolution_backward_data;
    const Backward::primitive_desc desc(
        {kDirect, x, weight, y, l.stride, l.dilation, l.padding, l.padding}, attr, engine, forward,
        /*allow_empty=*/true);
    if (!IsFast(desc, making)) return;
    AddOperands(made, l, {desc.diff_src_desc(), desc.weights_desc(), desc.diff_dst_desc()},
                {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST}, 0, engine);
    return SetPrimitive<Backward>(made, desc, engine);
  }
  using Backward = dnnl::convolution_backward_weights;
  const Backward::primitive_desc desc(
      {kDirect, x, weight, y, l.stride, l.dilation, l.padding, l.padding}, attr, engine, forward,
      /*allow_empty=*/true);
  if (!IsFast(desc, making)) return;
  AddOperands(made, l, {desc.src_desc(), desc.diff_weights_desc(), desc.diff_dst_desc()},
              {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}, 1, engine);
  SetPrimitive<Backward>(made, desc, engine);
}

int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

void Execute(const DeviceContext& context, const Call& call, Convolution& made,
             dnnl::stream& stream) {
  int64_t bytes = Aligned(made.scratchpad_bytes);
  for (const Operand& operand : made.operands) bytes += Aligned(operand.inner_bytes());
  const Workspace workspace(context, bytes);
  if (context.is_dry()) return;
  char* const scratchpad = workspace.data<char>();
  char* next = scratchpad + Aligned(made.scratchpad_bytes);
  std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SCRATCHPAD, made.scratchpad}};
  made.scratchpad.set_data_handle(scratchpad);
  for (size_t i = 0; i < 3; ++i) {
    Operand& operand = made.operands[i];
    operand.plain.set_data_handle(call.operands[i]);
    if (operand.reorder) {
      operand.inner.set_data_handle(next);
      operand.scratchpad.set_data_handle(scratchpad);
      next += Aligned(operand.inner_bytes());
    }
    arguments.emplace(operand.argument, operand.reorder ? operand.inner : operand.plain);
  }
  if (call.bias != nullptr) {
    made.bias.set_data_handle(const_cast<void*>(call.bias));
    arguments.emplace(DNNL_ARG_BIAS, made.bias);
  }
  const auto reorder = [&](Operand& operand, bool out) {
    if (!operand.reorder) return;
    operand.reorder.execute(stream, {{DNNL_ARG_FROM, out ? operand.inner : operand.plain},
                                     {DNNL_ARG_TO, out ? operand.plain : operand.inner},
                                     {DNNL_ARG_SCRATCHPAD, operand.scratchpad}});
  };
  for (size_t i = 0; i < 3; ++i) {
    if (i != call.result()) reorder(made.operands[i], false);
  }
  made.primitive.execute(stream, arguments);
  reorder(made.operands[call.result()], true);
}

bool Try(const DeviceContext& context, const Call& call) {
  if (!Supports(call)) return false;
  // See TryMatMulOneDnn.
  const ThreadTeam team(context.num_threads(), /*starts=*/!context.is_dry());
  auto& cache = ThreadCache<Key, Convolution>();
  Convolution& convolution = cache.Get(KeyOf(team.size(), call), kWhat,
                                       [&](Convolution& made, const MakingPrimitives& making) {
                                         Compile(made, call, cache.engine(), making);
                                       });
  if (!convolution.primitive) return false;
  RunOneDnn(kWhat, [&] { Execute(context, call, convolution, cache.stream()); });
  return true;
}

}  // namespace

bool TryConvForwardOneDnn(const DeviceContext& context, const ConvForwardArgs& args) {
  return Try(context,
             {.pass = Pass::kForward,
              .dtype = args.dtype,
              .result_dtype = args.y_dtype,
              .operands = {const_cast<void*>(args.x), const_cast<void*>(args.weight), args.y},
              .bias = args.bias,
              .sizes = args.sizes});
}

bool TryConvBackwardInputOneDnn(const DeviceContext& context, const ConvBackwardInputArgs& args) {
  return Try(context,
             {.pass = Pass::kInput,
              .dtype = args.dtype,
              .result_dtype = args.dx_dtype,
              .operands = {args.dx, const_cast<void*>(args.weight), const_cast<void*>(args.dy)},
              .bias = nullptr,
              .sizes = args.sizes});
}

bool TryConvBackwardWeightOneDnn(const DeviceContext& context, const ConvBackwardWeightArgs& args) {
  return Try(context,
             {.pass = Pass::kWeight,
              .dtype = args.dtype,
              .result_dtype = args.dweight_dtype,
              .operands = {const_cast<void*>(args.x), args.dweight, const_cast<void*>(args.dy)},
              .bias = nullptr,
              .sizes = args.sizes});
}

}  // namespace apogee::cpu

#endif  // APOGEE_USE_ONEDNN
