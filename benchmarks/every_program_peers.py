"""What PyTorch does for the rows of `every_program.py`: library calls, torch.compile's code, and the same in float64.

A function for each kind of row, named by `Row.peers`, takes the row and its tensors by name, and gives `Peers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from every_program_rows import Row
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright import kernels
from tilewright.compiler.native import kernel_for

functional = torch.nn.functional
DEVICE = "cuda"
Tensors = dict[str, Any]
TYPES = {
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "i8": torch.int8,
    "f8e4m3fn": torch.float8_e4m3fn,
}


@dataclass(frozen=True)
class Peers:
    """Calls to time, by name, and what the row's results must be.

    `wanted` gives (what we have, what it must be in float64) of some part of each result. A call whose name begins with
    "part: " is not a peer: the times of all such, and of a copy, make the peer `sum_name` together. One that begins
    with "told: " is timed, but no bar is of it.
    """

    calls: dict[str, Callable[[], Any]]
    wanted: Callable[[], Iterator[tuple[Any, Any]]]
    sum_name: str = ""

    def joined(self, times: dict[str, float], copied: float) -> dict[str, float]:
        """Times of peers, those of parts summed up."""
        parts = [t for name, t in times.items() if name.startswith("part: ")]
        peers = {name: t for name, t in times.items() if not name.startswith("part: ")}
        return peers | ({self.sum_name: sum(parts) + copied} if parts else {})


@dataclass
class Compiled:
    """A function by torch.compile, compiled when it is first called."""

    function: Callable[..., Any]
    arguments: Sequence[Any]
    code: Callable[..., Any] | None = field(default=None)

    def __call__(self) -> Any:
        """Calls it, compiled."""
        if self.code is None:
            self.code = torch.compile(self.function, dynamic=False)
        return self.code(*self.arguments)


def tensors_of(row: Row, arguments: Any) -> Tensors:
    """Random tensors for a kernel's arguments; results hold NaN, or 0 where their type has none."""
    torch.manual_seed(7)
    found: Tensors = {}
    for argument in arguments:
        shape, dtype = [int(n) for n in argument.type.shape], TYPES[str(argument.type.dtype)]
        scale = row.scales.get(argument.name, 1.0)
        if argument.name in row.results:
            found[argument.name] = torch.full(shape, math.nan, device=DEVICE, dtype=torch.float32).to(dtype)
        elif dtype == torch.int8:
            found[argument.name] = torch.randint(-127, 128, shape, device=DEVICE, dtype=dtype)
        else:
            found[argument.name] = torch.randn(shape, device=DEVICE, dtype=dtype) * scale
    return found


def peers_of(row: Row, tensors: Tensors) -> Peers:
    """The peers of a row; arguments that must fit each other are filled anew."""
    torch._dynamo.reset()
    found: Peers = KINDS[row.peers](row, tensors)
    return found


def relative_errors(row: Row, tensors: Tensors, peers: Peers) -> Iterator[float]:
    """The relative difference, by norms, of each result; infinite where a number is not finite."""
    for got, wanted in peers.wanted():
        wanted = wanted.double()
        error = float((got.double() - wanted).norm() / wanted.norm())
        yield error if math.isfinite(error) else math.inf


def compile_peers(row: Row, arguments: Any) -> None:
    """Calls what torch.compile is to compile, so that its cache on disk has it; what it raises is said later."""
    try:
        peers = peers_of(row, tensors_of(row, arguments))
        for call in peers.calls.values():
            if isinstance(call, Compiled):
                call()
        torch.cuda.synchronize()
    except Exception as fault:
        print(f"{row.name}: peers: {type(fault).__name__}: {str(fault).splitlines()[:1]}", flush=True)
    torch.cuda.empty_cache()


# -- attention ------------------------------------------------------------------------------------------------


def attention(row: Row, t: Tensors) -> Peers:
    """Flash's, cuDNN's and PyTorch's own, and a compiled Flex; masks other than a square causal one go to Flex."""
    q, k, v = (t[name] for name in "qkv")
    out = t[row.results[0]]
    grouped = q.dim() == 5
    scale = row.options.get("scale", q.shape[-1] ** -0.5)
    causal, window = row.options.get("causal", False), row.options.get("window")
    first, m, n = row.options.get("first_query", 0), q.shape[-2], k.shape[-2]
    heads = q.flatten(1, 2) if grouped else q
    share = heads.shape[1] // k.shape[1]
    square = causal and m == n and window is None
    calls: dict[str, Callable[[], Any]] = {}

    def by(backend: Any, queries: Any, keys: Any, values: Any, **masks: Any) -> Any:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(
                queries, keys, values, scale=scale, enable_gqa=queries.shape[1] != keys.shape[1], **masks
            )

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    if q.dtype == torch.float32:
        backends = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
    for name, backend in backends.items():
        if square or not causal:
            calls[name] = partial(by, backend, heads, k, v, is_causal=square)
        elif window is None:
            from torch.nn.attention.bias import causal_lower_right

            repeated = [x if share == 1 else x.repeat_interleave(share, 1) for x in (k, v)]
            calls[name] = partial(by, backend, heads, *repeated, attn_mask=causal_lower_right(m, n))
    if grouped and m == 1 and share > 1 and not causal:
        calls["cudnn folded"] = partial(by, SDPBackend.CUDNN_ATTENTION, q.squeeze(3), k, v)
    if causal and not square:
        calls["flex"] = _flex(heads, k, v, scale, first, window)

    def wanted() -> Iterator[tuple[Any, Any]]:
        picked = (0, 0, 0) if grouped else (0, 0)
        scores = q[picked].double() @ k[picked[:2]].double().t() * scale
        if causal:
            at, key = first + torch.arange(m, device=DEVICE)[:, None], torch.arange(n, device=DEVICE)[None]
            hidden = key > at if window is None else (key > at) | (key <= at - window)
            scores = scores.masked_fill(hidden, -math.inf)
        yield out[picked], torch.softmax(scores, -1) @ v[picked[:2]].double()
        last = tuple(size - 1 for size in out.shape[:-2])
        assert math.isfinite(float(out[last].double().sum()))

    return Peers(_taken(calls), wanted)


def _flex(q: Any, k: Any, v: Any, scale: float, first: int, window: int | None) -> Compiled:
    """Flex attention under a causal mask that begins at `first`, with a window."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    seen = window or k.shape[-2] + 1

    def sees(batch: Any, head: Any, row: Any, key: Any) -> Any:
        return (key <= row + first) & (key > row + first - seen)

    mask = create_block_mask(sees, None, None, q.shape[-2], k.shape[-2], device=DEVICE)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])

    return Compiled(attend, (q, k, v))


def _taken(calls: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """The calls that do not refuse their arguments; what torch.compile makes is tried later."""
    found = {}
    for name, call in calls.items():
        if not isinstance(call, Compiled):
            try:
                call()
            except RuntimeError:  # the backend does not take it
                continue
        found[name] = call
    return found


def value_gradient(row: Row, t: Tensors) -> Peers:
    """The weights from the scores, then their product with the results' gradient, in library calls and compiled."""
    q, k, rows, do, dv = (t[name] for name in ("q", "k", "l", "do", "dv"))
    rows.copy_(torch.logsumexp(_each_head(lambda q, k: q.float() @ k.float().t() * 0.125, q, k), -1))

    def eager(q: Any, k: Any, rows: Any, do: Any) -> Any:
        weights = torch.exp((q @ k.transpose(-1, -2)) * 0.125 - rows[..., None]).to(do.dtype)
        return weights.transpose(-1, -2) @ do

    def wanted() -> Iterator[tuple[Any, Any]]:
        weights = torch.exp(q[0, 0].double() @ k[0, 0].double().t() * 0.125 - rows[0, 0].double()[:, None])
        yield dv[0, 0], weights.t() @ do[0, 0].double()

    given = (q, k, rows, do)
    return Peers({"eager": partial(eager, *given), "compiled": Compiled(eager, given)}, wanted)


def _each_head(function: Callable[..., Any], *tensors: Any) -> Any:
    """A function of matrices, of each of a tensor's."""
    heads = [x.flatten(0, 1) for x in tensors]
    return torch.stack([function(*matrices) for matrices in zip(*heads, strict=True)]).unflatten(
        0, tensors[0].shape[:2]
    )


# -- products -------------------------------------------------------------------------------------------------


def gated_unit(row: Row, t: Tensors) -> Peers:
    """Two products; compiled; and compiled with the weights joined."""
    x, w, u, y = (t[name] for name in "xwuy")
    both, n = torch.cat((w, u)), w.shape[0]

    def eager(x: Any, w: Any, u: Any) -> Any:
        return functional.silu(x @ w.t()) * (x @ u.t())

    def joined(x: Any, both: Any) -> Any:
        found = x @ both.t()
        return functional.silu(found[:, :n]) * found[:, n:]

    def wanted() -> Iterator[tuple[Any, Any]]:
        yield y, eager(x.double(), w.double(), u.double())

    calls = {"eager": partial(eager, x, w, u), "compiled": Compiled(eager, (x, w, u))}
    return Peers({**calls, "joined": Compiled(joined, (x, both))}, wanted)


def gelu_and_residual(row: Row, t: Tensors) -> Peers:
    """A linear layer, gelu and a sum."""
    x, w, b, r, y = (t[name] for name in "xwbry")

    def eager(x: Any, w: Any, b: Any, r: Any) -> Any:
        return functional.gelu(functional.linear(x, w, b)) + r

    return _peers_of(eager, (x, w, b, r), y)


def byte_weights(row: Row, t: Tensors) -> Peers:
    """A product with weights of bf16, which read twice the bytes."""
    x, w, s, y = (t[name] for name in "xwsy")
    wide, out = w.to(torch.bfloat16), torch.empty_like(y)

    def wanted() -> Iterator[tuple[Any, Any]]:
        yield y, (x.double() @ w.double().t()) * s.double()

    return Peers({"bf16 weights": lambda: torch.mm(x, wide.t(), out=out)}, wanted)


def experts(row: Row, t: Tensors) -> Peers:
    """cuBLAS's batched product."""
    a, b, c = (t[name] for name in "abc")

    def wanted() -> Iterator[tuple[Any, Any]]:
        yield c, a.double() @ b.double().transpose(1, 2)

    return Peers({"bmm": lambda: torch.bmm(a, b.transpose(1, 2))}, wanted)


def matrix_vector(row: Row, t: Tensors) -> Peers:
    """cuBLAS's, a linear layer of one row, and that compiled."""
    w, x, y = t["w"], t["x"], t["y"]

    def eager(x: Any, w: Any) -> Any:
        return functional.linear(x[None], w)[0]

    found = _peers_of(eager, (x, w), y)
    return Peers({**found.calls, "mv": lambda: torch.mv(w, x)}, found.wanted)


def low_rank(row: Row, t: Tensors) -> Peers:
    """Three products, the last of which adds."""
    x, w, a, b, y = (t[name] for name in "xwaby")

    def eager(x: Any, w: Any, a: Any, b: Any) -> Any:
        return torch.addmm(x @ w.t(), x @ a.t(), b.t())

    return _peers_of(eager, (x, w, a, b), y)


def norm_and_product(row: Row, t: Tensors) -> Peers:
    """An RMS norm, and a product."""
    x, g, w, y = (t[name] for name in "xgwy")

    def eager(x: Any, g: Any, w: Any) -> Any:
        return functional.rms_norm(x, (x.shape[-1],), g, 1e-6) @ w.t()

    return _peers_of(eager, (x, g, w), y)


def product_and_softmax(row: Row, t: Tensors) -> Peers:
    """A product, and a softmax of its rows."""
    a, b, y = (t[name] for name in "aby")

    def eager(a: Any, b: Any) -> Any:
        return torch.softmax(a @ b.t(), -1)

    return _peers_of(eager, (a, b), y)


def triangular(row: Row, t: Tensors) -> Peers:
    """The lower triangle of an operand or of the result, beside a product; the triangle is taken every time."""
    a, b, y = (t[name] for name in "aby")

    def eager(a: Any, b: Any) -> Any:
        return torch.tril(a) @ b.t() if row.options["side"] == "operand" else torch.tril(a @ b.t())

    return _peers_of(eager, (a, b), y)


def _peers_of(eager: Callable[..., Any], given: tuple[Any, ...], *results: Any) -> Peers:
    """A function of tensors as it is, compiled, and in float64; it gives one result or a tuple of them."""

    def wanted() -> Iterator[tuple[Any, Any]]:
        exact = eager(*(x.double() for x in given))
        yield from zip(results, exact if isinstance(exact, tuple) else (exact,), strict=True)

    return Peers({"eager": partial(eager, *given), "compiled": Compiled(eager, given)}, wanted)


# -- images ---------------------------------------------------------------------------------------------------


def _channels_first(x: Any) -> Any:
    """A view of [N, ..., C] as [N, C, ...], whose memory PyTorch knows as channels last."""
    return x.movedim(-1, 1)


def filter_gradient(row: Row, t: Tensors) -> Peers:
    """cuDNN's gradient of filters."""
    x, dy, dw = (t[name] for name in ("x", "dy", "dw"))
    given, w = (_channels_first(dy), _channels_first(x)), _channels_first(dw)

    def call(dy: Any, x: Any, w: Any) -> Any:
        return _backward(dy, x, w, row.options["stride"], 1, [False, True, False])[1]

    def wanted() -> Iterator[tuple[Any, Any]]:
        exact = call(*(x.double().contiguous() for x in (*given, torch.zeros_like(w))))
        yield dw, exact.movedim(1, -1)

    return Peers({"cudnn": partial(call, *given, torch.zeros_like(w))}, wanted)


def image_gradient(row: Row, t: Tensors) -> Peers:
    """cuDNN's gradient of images, which is a transposed convolution."""
    dy, w, dx = (t[name] for name in ("dy", "w", "dx"))
    stride, padding = row.options["stride"], row.options["padding"]
    given, x = (_channels_first(dy), _channels_first(w)), _channels_first(dx)

    def call(dy: Any, w: Any, x: Any) -> Any:
        return _backward(dy, x, w, stride, padding, [True, False, False])[0]

    def wanted() -> Iterator[tuple[Any, Any]]:
        part = (given[0][:1], given[1], torch.zeros_like(x[:1]))
        yield dx[:1], call(*(x.double().contiguous() for x in part)).movedim(1, -1)
        assert math.isfinite(float(dx[-1].double().sum()))

    return Peers({"cudnn": partial(call, *given, torch.zeros_like(x))}, wanted)


def _backward(dy: Any, x: Any, w: Any, stride: int, padding: int, mask: list[bool]) -> Any:
    """PyTorch's gradients of a convolution: of images, of filters, of the bias, as the mask says."""
    rank = x.dim() - 2
    steps, pads, ones = [stride] * rank, [padding] * rank, [1] * rank
    return torch.ops.aten.convolution_backward(dy, x, w, [0], steps, pads, ones, False, [0] * rank, 1, mask)


def conv_nchw(row: Row, t: Tensors) -> Peers:
    """Our own convolution with channels last, plus a copy of the data; cuDNN's of these tensors is told beside it."""
    x, w, y = (t[name] for name in "xwy")
    taps, stride, padding = (row.options[name] for name in ("taps", "stride", "padding"))
    last = {name: row.sizes[name] for name in "NHWCF"}
    kernel = kernels.conv((taps, taps), "bf16", stride=stride, padding=padding)
    arrays = [z.movedim(1, -1).contiguous() for z in (x, w, y)]
    made = kernel_for(kernel, last, target="gpu")
    ours = made.bind(dict(zip([a.name for a in made.module.host.args], arrays, strict=True)))

    def library(x: Any, w: Any) -> Any:
        return functional.conv2d(x, w, stride=stride, padding=padding)

    def wanted() -> Iterator[tuple[Any, Any]]:
        yield y[:2], library(x[:2].double(), w.double())
        assert math.isfinite(float(y[-1].double().sum()))

    return Peers({"part: channels last": ours, "told: cudnn": partial(library, x, w)}, wanted, "NHWC + copy")


def depthwise(row: Row, t: Tensors) -> Peers:
    """PyTorch's convolution with a group for each channel."""
    x, w, y = (t[name] for name in "xwy")

    def eager(x: Any, w: Any) -> Any:
        return functional.conv2d(x, w[:, None], padding=1, groups=w.shape[0])

    return _peers_of(eager, (x, w), y)


def two_convolutions(row: Row, t: Tensors) -> Peers:
    """Two of cuDNN's, channels last."""
    x, w1, w2, y = (t[name] for name in ("x", "w1", "w2", "y"))
    channels = x.shape[-1]

    def eager(x: Any, w1: Any, w2: Any) -> Any:
        first = _channels_first(w1.view(-1, 3, 3, channels))
        between = functional.relu(functional.conv2d(_channels_first(x), first, padding=1))
        return functional.conv2d(between, w2[:, :, None, None]).movedim(1, -1).reshape(-1, w2.shape[0])

    return _peers_of(eager, (x, w1, w2), y)


def pooled(row: Row, t: Tensors) -> Peers:
    """PyTorch's, channels last, and that compiled."""
    x, y = t["x"], t["y"]

    def eager(x: Any) -> Any:
        return functional.max_pool2d(_channels_first(x), 3, 2, 1).movedim(1, -1)

    return _peers_of(eager, (x,), y)


# -- rows -----------------------------------------------------------------------------------------------------


def log_softmax(row: Row, t: Tensors) -> Peers:
    """Of rows that are widened to f32."""
    x, y = t["x"], t["y"]

    def eager(x: Any) -> Any:
        return torch.log_softmax(x, -1, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)

    return _peers_of(eager, (x,), y)


def quantised_rows(row: Row, t: Tensors) -> Peers:
    """The largest of each row, and a division."""
    x, y, s = (t[name] for name in "xys")

    def eager(x: Any) -> tuple[Any, Any]:
        values = x if x.dtype == torch.float64 else x.float()
        scale = values.abs().amax(1) / 448.0
        found = values / scale[:, None]
        return found if x.dtype == torch.float64 else found.to(torch.float8_e4m3fn), scale

    return _peers_of(eager, (x,), y, s)


def group_norm(row: Row, t: Tensors) -> Peers:
    """Group norm and silu, of channels last."""
    x, g, b, y = (t[name] for name in "xgby")
    groups = g.shape[0]

    def eager(x: Any, g: Any, b: Any) -> Any:
        images = x.flatten(2).movedim(-1, 1)
        normal = functional.group_norm(images, groups, g.flatten().to(x.dtype), b.flatten().to(x.dtype), 1e-5)
        return functional.silu(normal).movedim(1, -1).reshape(x.shape)

    return _peers_of(eager, (x, g, b), y)


def sum_of_doubled(row: Row, t: Tensors) -> Peers:
    """A sum."""
    return _sum(lambda x: (2.0 * x).sum(), (t["x"],), t["y"])


def sum_of_sums(row: Row, t: Tensors) -> Peers:
    """A sum of rows, and their sum."""
    return _sum(lambda x: x.sum(1).sum(0), (t["x"],), t["y"])


def mean_loss(row: Row, t: Tensors) -> Peers:
    """The mean of squared differences."""
    return _sum(functional.mse_loss, (t["a"], t["b"]), t["y"])


def _sum(eager: Callable[..., Any], given: tuple[Any, ...], y: Any) -> Peers:
    """A sum to one number; numbers are made positive first, so that a relative difference says something."""
    for x in given:
        x.abs_()

    def wanted() -> Iterator[tuple[Any, Any]]:
        yield y, eager(*(x.double() for x in given)).reshape(1)

    return Peers({"eager": partial(eager, *given), "compiled": Compiled(eager, given)}, wanted)


KINDS: dict[str, Callable[[Row, Tensors], Peers]] = {
    kind.__name__: kind
    for kind in (
        *(attention, value_gradient, gated_unit, gelu_and_residual, byte_weights, experts, matrix_vector, low_rank),
        *(norm_and_product, product_and_softmax, triangular, filter_gradient, image_gradient, conv_nchw, depthwise),
        *(two_convolutions, pooled, log_softmax, quantised_rows, group_norm, sum_of_doubled, sum_of_sums, mean_loss),
    )
}
