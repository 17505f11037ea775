"""The problems of `old_new.py`, as data: a worker of either commit builds the kernel from the same description."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gpu_shapes as gpu
import rowwise

HERE = Path(__file__).parent
CPU_OPERATIONS = 2**31
"""Products and attention of the lists for GPUs are measured on a CPU too where M * N * K is no larger."""
ROW_KERNELS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "softmax": ("softmax", ()),
    "layer_norm": ("layer_norm", ()),
    "rms_norm": ("rms_norm", ()),
    "row_sums": ("reduction", ("sum", "columns")),
    "column_sums": ("reduction", ("sum", "rows")),
    "transpose": ("transpose", ((1, 0),)),
    "gelu": ("activation", ("gelu",)),
    "gated_silu": ("gated_silu", ()),
}
"""The kernel and its arguments before the element type, by the name that `gpu_rowwise.py` prints."""


@dataclass(frozen=True)
class Problem:
    """A kernel, named by what makes it, with its sizes; everything in it can be written as JSON.

    >>> Problem.read(Problem("products", "f32 8x8x8", "gemm", ("nn",), sizes={"M": 8}).__dict__).args
    ('nn',)
    """

    list: str
    name: str
    make: str
    """A function of tilewright.kernels, or one of `_fused`."""
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    constant: tuple[str, ...] = ()
    """Arguments that are packed once, before launches are timed."""
    highest: int = 2
    """The largest of the data of integer arguments, which may be indices."""
    in_graph: bool = True
    """Whether its launches can be captured in a CUDA graph; one that refuses indices reads what the GPU found."""

    @staticmethod
    def read(data: dict[str, Any]) -> Problem:
        """A problem from its JSON form, where tuples are lists."""
        return Problem(**{name: _tuples(value) for name, value in data.items()})

    def kernel(self) -> Any:
        """The kernel, made by the tilewright that is imported here."""
        from tilewright import kernels

        make = _fused().get(self.make) or getattr(kernels, self.make)
        return make(*self.args, **self.options)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _fused() -> dict[str, Callable[..., Any]]:
    """Programs of several operations: those that `gpu_families.py` and `gpu_chained.py` measure."""
    sys.path[:0] = [place] if (place := str(HERE.parent / "tests" / "kernels")) not in sys.path else []
    import fused_families as families

    from tilewright.kernels.elementwise import gelu, gelu_tanh

    return {
        "product and softmax": lambda: families.product_and(families.softmax),
        "product and layer norm": lambda n: families.with_weights(families.layer_norm(n)),
        "product and rms norm": lambda n: families.product_and(families.rms_norm(n)),
        "two layers, gelu": lambda: families.two_layers(gelu),
        "two layers, gelu by tanh": lambda: families.two_layers(gelu_tanh),
        "three operands": families.three_factors,
        "scaled product": families.scaled,
        "widened weights": families.widened,
        "two convolutions": families.two_convolutions,
    }


# -- kinds of problems ----------------------------------------------------------------------------------------


def conv(of_list: str, problem: Any, dtype: str) -> Problem:
    """A convolution with channels last and constant weights; `problem` is a ConvProblem."""
    result = {"i8": "i32"}.get(dtype, dtype)
    options = {
        "stride": problem.s,
        "padding": tuple(zip(problem.p, problem.p_right, strict=True)),
        "dilation": problem.dilation,
        "groups": problem.groups,
    }
    sizes = {"N": problem.mb, "F": problem.oc, **dict(zip("DHW"[-problem.rank :], problem.i, strict=True))}
    sizes |= {"CG": problem.ic_per_group} if problem.groups > 1 else {"C": problem.ic}
    name = f"{dtype} {problem}"
    return Problem(of_list, name, "conv", (problem.k, dtype, result), options, sizes, ("w",))


def gemm(
    of_list: str, m: int, n: int, k: int, how: str = "nt", dtype: str = "bf16", result: str = "", **options: Any
) -> Problem:
    """A product of matrices; `how` says which operand is transposed."""
    name = f"{options.get('precision', dtype)} {how} {m}x{n}x{k}"
    args = (how, dtype, result or {"i8": "i32"}.get(dtype, dtype))
    return Problem(of_list, name, "gemm", args, options, {"M": m, "N": n, "K": k})


def attention(of_list: str, shape: tuple[int, ...], dtype: str, causal: bool, tile: int = 128) -> Problem:
    """Attention of (batch, heads, queries and keys, size of a head)."""
    batch, heads, length, head = shape
    sizes = {"B": batch, "H": heads, "M": length, "N": length, "D": head, "E": head}
    name = f"{dtype} attention {'x'.join(map(str, shape))}{' causal' if causal else ''}"
    return Problem(of_list, name, "attention", (tile, dtype), {"causal": causal}, sizes)


def rows(of_list: str, m: int, n: int, dtype: str) -> Iterator[Problem]:
    """The kernels that memory bounds."""
    for name, (make, before) in ROW_KERNELS.items():
        sizes = {"D0": m, "D1": n} if make == "transpose" else {"M": m, "N": n}
        yield Problem(of_list, f"{dtype} {name} {m}x{n}", make, (*before, dtype), sizes=sizes)


def others(of_list: str, m: int, n: int, dtype: str) -> Iterator[Problem]:
    """The other kernels of tilewright.kernels: scans, permutations, gathers, im2col."""
    sizes, said = {"M": m, "N": n}, f"{m}x{n}"
    yield Problem(of_list, f"{dtype} online_softmax {said}", "online_softmax", (256, dtype), sizes=sizes)
    yield Problem(of_list, f"{dtype} running_sum {said}", "running_sum", (dtype,), sizes=sizes)
    yield Problem(of_list, f"{dtype} tiled_running_sum {said}", "tiled_running_sum", (256, dtype), sizes=sizes)
    yield Problem(of_list, f"{dtype} max of rows {said}", "reduction", ("max", "columns", dtype), sizes=sizes)
    for axes in ((0, 2, 1), (2, 1, 0), (1, 0, 2)):
        shape = {"D0": 64, "D1": m // 64 + 1, "D2": n}
        name = f"{dtype} transpose {''.join(map(str, axes))} {'x'.join(map(str, shape.values()))}"
        yield Problem(of_list, name, "transpose", (axes, dtype), sizes=shape)
    by_index: dict[str, Any] = {"sizes": sizes | {"ROWS": 2 * m}, "highest": 2 * m - 1}
    yield Problem(of_list, f"{dtype} gather_rows {said}", "gather_rows", (dtype,), in_graph=False, **by_index)
    yield Problem(of_list, f"{dtype} scatter_rows {said}", "scatter_rows", (dtype,), **by_index)
    yield Problem(of_list, f"histogram {m * n} of 1000", "histogram", sizes={"M": m * n, "BINS": 1000}, highest=999)
    image, name = {"N": 4, "H": 56, "W": 55, "C": 64}, f"{dtype} im2col 4x56x55x64 3x3"
    yield Problem(of_list, name, "im2col", ((3, 3), dtype), {"padding": (1, 1)}, image)


def reduced_products(of_list: str, m: int, n: int, k: int) -> Iterator[Problem]:
    """A product whose rows are reduced."""
    for make, args in (("product and softmax", ()), ("product and layer norm", (n,)), ("product and rms norm", (n,))):
        yield Problem(of_list, f"{make} {m}x{n}x{k}", make, args, sizes={"M": m, "N": n, "K": k})


def chains(of_list: str, m: int, k: int, f: int, n: int) -> Iterator[Problem]:
    """Two products, one after the other."""
    for make in ("two layers, gelu", "three operands"):
        yield Problem(of_list, f"{make} {m}x{k}-{f}-{n}", make, sizes={"M": m, "K": k, "F": f, "N": n})


def quantised(of_list: str, m: int, n: int, k: int, group: int) -> Iterator[Problem]:
    """Products of bytes with scales, and weights that are widened."""
    sizes, said = {"M": m, "N": n, "K": k}, f"{m}x{n}x{k}"
    for dtype in ("i8", "f8e4m3fn"):
        yield Problem(of_list, f"{dtype} with scales {said}", "scaled product", (dtype,), sizes=sizes)
    sizes = sizes | {"S": k // group}
    yield Problem(of_list, f"weights of i8 {said}", "widened weights", ("i8", group), sizes=sizes)
    sizes, packed = sizes | {"H": k // 2}, {"packed": True}
    yield Problem(of_list, f"weights of 4 bits {said}", "widened weights", ("u8", group), packed, sizes)


def two_convolutions(of_list: str, *shape: int) -> Problem:
    """A 3x3 convolution and a pointwise one."""
    batch, height, width, channels, _, _ = shape
    sizes = dict(zip("BHWCFG", shape, strict=True)) | {"M": batch * height * width, "K": 9 * channels}
    name = f"3x3 and 1x1 {'x'.join(map(str, shape[:3]))} {'-'.join(map(str, shape[3:]))}"
    return Problem(of_list, name, "two convolutions", shape[:4], sizes=sizes)


# -- lists ----------------------------------------------------------------------------------------------------


BATCH = 16
"""Images of a batch, whose layers are not those of one image made larger: cores share images."""


def cpu_problems() -> Iterator[Problem]:
    """The problems that are measured on a CPU."""
    from tilewright.problems import shape_list, shape_lists

    for name in shape_lists():
        for problem in dict.fromkeys(replace(p, name=None) for p in shape_list(name, mb=1)):  # two may differ by mb
            yield conv(name, problem, "f32")
    for dtype in ("i8", "f16", "bf16"):
        for problem in shape_list("resnet_50", mb=1):
            yield conv(f"resnet_50_{dtype}", replace(problem, name=None), dtype)
    for problem in shape_list("resnet_50", mb=BATCH):
        yield conv("resnet_50_batch", replace(problem, name=None), "bf16")
    for m, n, k in gpu.GEMMS:
        if m * n * k <= CPU_OPERATIONS:
            for dtype in ("f32", "i8", "bf16"):
                yield gemm("products", m, n, k, dtype=dtype)
    for how, m, n, k in gpu.F32_GEMMS:
        if m * n * k <= CPU_OPERATIONS and how != "nt":
            yield gemm("products", m, n, k, how, "f32")
    for shape in ((1, 16, 1024, 64), (1, 4, 1000, 80), (1, 8, 512, 128)):
        for dtype, causal in (("f32", False), ("f32", True), ("bf16", False)):
            yield attention("attention", shape, dtype, causal, 512)
    for m, n in rowwise.SHAPES:
        yield from rows("rows", m, n, "f32")
    yield from rows("rows", 1000, 777, "bf16")
    yield from others("tiles", 1000, 777, "f32")
    yield from reduced_products("fused", 520, 256, 512)
    yield from chains("fused", 520, 512, 512, 256)
    yield from quantised("fused", 64, 512, 512, 128)
    yield two_convolutions("fused", 1, 28, 29, 32, 64, 128)


DRAWN, SEED = 60, int(os.environ.get("DRAWN_SEED", "31"))
"""Layers and products that nobody chose, and the seed that draws them; old_new.py --seed gives another."""


def drawn(count: int = DRAWN, seed: int = SEED) -> Iterator[Problem]:
    """Layers and products of sizes drawn at random, in the manner of networks: half of them convolutions."""
    from tilewright.problems import parse_conv

    rng = random.Random(seed)
    channels = (3, 16, 32, 48, 64, 80, 96, 128, 192, 256, 320, 384, 512, 768, 1024)
    for number in range(count):
        if number % 2:
            m, n, k = (rng.choice((rng.randrange(1, 513), 8 * rng.randrange(16, 513))) for _ in range(3))
            yield gemm("drawn", m, n, max(8, k // 8 * 8), rng.choice(("nt", "nn")))
            continue
        taps, stride, size = rng.choice((1, 1, 3, 3, 5, 7)), rng.choice((1, 1, 1, 2)), rng.randrange(7, 113)
        out = (size + 2 * (taps // 2) - taps) // stride + 1
        text = f"mb{rng.choice((1, 4, 16, 32))}ic{rng.choice(channels)}ih{size}oc{rng.choice(channels[1:])}"
        yield conv("drawn", parse_conv(f"{text}oh{out}kh{taps}sh{stride}ph{taps // 2}"), "bf16")


def gpu_problems() -> Iterator[Problem]:
    """The problems that are measured on a GPU: those of gpu.py, gpu_rowwise.py and gpu_chained.py, and drawn ones."""
    from tilewright.problems import parse_conv

    for sizes in gpu.GEMMS:
        yield gemm("gemm", *sizes)
    for name, (dtype, result) in gpu.TYPES.items():
        options = {"precision": "tf32"} if name == "tf32" else {}
        yield gemm("types", 8192, 8192, 8192, dtype=dtype, result=result, **options)
    for how, m, n, k in gpu.F32_GEMMS:
        yield gemm("f32", m, n, k, how, "f32")
    for line in gpu.F32_CONVS:
        yield conv("f32", parse_conv(line), "f32")
    for line in gpu.CONVS:
        yield conv("conv", parse_conv(line), "bf16")
    for line in gpu.OTHERS:
        yield conv("others", parse_conv(line), "bf16")
    for shape in gpu.ATTENTIONS:
        for causal in (False, True):
            yield attention("attention", shape, "bf16", causal)
    for m, n in gpu.ROWS:
        for dtype in ("bf16", "f32"):
            yield from rows("rows", m, n, dtype)
    yield from others("tiles", 8200, 4096, "f32")
    for make in ("two layers, gelu", "two layers, gelu by tanh"):
        yield Problem("chained", f"{make} {'-'.join(map(str, gpu.MLP.values()))}", make, sizes=gpu.MLP)
    make, sizes = "product and softmax", gpu.PRODUCT_SOFTMAX
    yield Problem("chained", f"{make} {'x'.join(map(str, sizes.values()))}", make, sizes=sizes)
    for shape in gpu.REDUCED_PRODUCTS:
        yield from reduced_products("families", *shape)
    for shape in gpu.CHAINS:
        yield from chains("families", *shape)
    for shape in gpu.QUANTISED:
        yield from quantised("families", *shape)
    for shape in gpu.TWO_CONVOLUTIONS:
        yield two_convolutions("families", *shape)
    yield from drawn()
