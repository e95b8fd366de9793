# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of `gpu_bench kernels`: for each row's name, a call of the same work. See pytorch_gpu.py.

Eager ops, except that attention is scaled_dot_product_attention. Backward passes are PyTorch's own backward kernels
where it names them, else autograd.grad of a kept graph. SwiGLU and rotary positions are several kernels.
"""

# How many bytes or FLOPs a row has is gpu_bench's to say (gpu_bench kernels --list).
SIZES = {"C": 768, "H": 12, "V": 50304, "G": 2048}


def element_rows(torch, s):
    F, C, N = torch.nn.functional, s["C"], s["N"]
    rand = s["rand"]
    yield "copy", lambda x=rand(N, C): x.clone()
    yield "cast_from_f32", lambda x=rand(N, C).float(): x.to(torch.bfloat16)
    yield "transpose", lambda x=rand(N, C): x.t().contiguous()
    yield "fill", lambda: torch.zeros((N, C), device="cuda", dtype=torch.bfloat16)
    yield "residual_add", lambda x=rand(N, C), y=rand(N, C): x + y
    yield "position_add", lambda x=rand(s["B"], s["T"], C), y=rand(s["T"], C): x + y
    yield "gradient_add", lambda x=rand(N, C), y=rand(N, C): y.add_(x)
    yield "gelu_forward", lambda x=rand(N, 4 * C): F.gelu(x, approximate="tanh")
    yield "gelu_backward", lambda x=rand(N, 4 * C), dy=rand(N, 4 * C): torch.ops.aten.gelu_backward(
        dy, x, approximate="tanh")
    gate, up = rand(N, 2 * s["G"]).chunk(2, dim=1)
    yield "swiglu_forward", lambda: F.silu(gate) * up
    both = rand(N, 2 * s["G"]).requires_grad_()
    halves = both.chunk(2, dim=1)
    yield "swiglu_backward", grad_of(torch, F.silu(halves[0]) * halves[1], [both])
    yield "dropout", lambda x=rand(N, C): torch.native_dropout(x, 0.1, True)
    x = rand(s["B"], s["T"], s["H"], C // s["H"])
    half = C // s["H"] // 2
    angles = torch.arange(s["T"], device="cuda")[:, None] / 10000 ** (torch.arange(half, device="cuda") / half)
    cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]

    def rotary():
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    yield "rotary", rotary


def grad_of(torch, y, inputs):
    dy = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def row_rows(torch, s):
    F, C, N, T, V = torch.nn.functional, s["C"], s["N"], s["T"], s["V"]
    rand, aten = s["rand"], torch.ops.aten
    x, dy, weight, bias = rand(N, C), rand(N, C), rand(C), rand(C)
    yield "layer_norm_forward", lambda: torch.native_layer_norm(x, (C,), weight, bias, 1e-5)
    _, mean, rstd = torch.native_layer_norm(x, (C,), weight, bias, 1e-5)
    yield "layer_norm_backward", lambda: aten.native_layer_norm_backward(
        dy, x, [C], mean, rstd, weight, bias, [True, True, True])
    yield "rms_norm_forward", lambda: F.rms_norm(x, (C,), weight, 1e-5)
    inputs = [rand(N, C).requires_grad_(), rand(C).requires_grad_()]
    yield "rms_norm_backward", grad_of(torch, F.rms_norm(inputs[0], (C,), inputs[1], 1e-5), inputs)
    scores = rand(N, T)
    yield "softmax_forward", lambda: torch.softmax(scores, -1)
    probabilities = torch.softmax(scores, -1)
    yield "softmax_backward", lambda: aten._softmax_backward_data(scores, probabilities, -1, scores.dtype)
    targets = torch.randint(V, (N,), device="cuda")
    logits = rand(N, V).requires_grad_()
    yield "cross_entropy_forward", lambda: F.cross_entropy(logits.detach(), targets)
    yield "cross_entropy_backward", grad_of(torch, F.cross_entropy(logits, targets), [logits])
    for name, columns in (("bias_gradient_3c", 3 * C), ("bias_gradient_4c", 4 * C), ("bias_gradient_c", C)):
        yield name, lambda dy=rand(N, columns): dy.sum(0)
    table = rand(V, C)
    yield "embedding_forward", lambda: F.embedding(targets, table)
    yield "embedding_backward", lambda: aten.embedding_dense_backward(dy, targets, V, -1, False)


def attention_rows(torch, s):
    packed = s["rand"](s["B"], s["T"], 3 * s["H"], s["C"] // s["H"]).requires_grad_()

    def attention(x):
        q, k, v = (part.transpose(1, 2) for part in x.chunk(3, dim=2))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    yield "attention_forward", lambda: attention(packed.detach())
    yield "attention_backward", grad_of(torch, attention(packed), [packed])


def product_rows(torch, s):
    F, C, N, rand = torch.nn.functional, s["C"], s["N"], s["rand"]
    for name, wide_in, wide_out in (("qkv", C, 3 * C), ("proj", C, C), ("fc", C, 4 * C), ("out", 4 * C, C)):
        x, dy, weight, bias = rand(N, wide_in), rand(N, wide_out), rand(wide_in, wide_out), rand(wide_out)
        yield f"{name}_forward", lambda: torch.matmul(x, weight)
        yield f"{name}_forward_bias", lambda: torch.addmm(bias, x, weight)
        if name == "fc":
            yield "fc_forward_bias_gelu", lambda: F.gelu(torch.addmm(bias, x, weight), approximate="tanh")
        yield f"{name}_dx", lambda: torch.matmul(dy, weight.t())
        yield f"{name}_dw", lambda: torch.matmul(x.t(), dy)
    x, dy, table = rand(N, C), rand(N, s["V"]), rand(s["V"], C)
    yield "head_forward", lambda: torch.matmul(x, table.t())
    yield "head_dx", lambda: torch.matmul(dy, table)
    yield "head_dw", lambda: torch.matmul(dy.t(), x)
    a, b = rand(4096, 4096), rand(4096, 4096)
    yield "square", lambda: torch.matmul(a, b)


def rows(torch, batch, block):
    """Names and calls, one by one: the operands of a row live until the next one is asked for."""
    sizes = dict(SIZES, B=batch, T=block, N=batch * block)
    sizes["rand"] = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    for part in (element_rows, row_rows, attention_rows, product_rows):
        yield from part(torch, sizes)
