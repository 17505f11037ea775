"""Pooling beside torch's own: equal on small integers and NaN, in every layout, however torch follows calls."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_opcheck import LAYOUTS
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import tilewright.torch
from tilewright.errors import ArgumentError, MissingBackward
from tilewright.torch import functional

F = torch.nn.functional
OURS = torch.ops.tilewright
KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
RANKS = [1, 2, 3]


def numbers(*shape: int, kind: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-9, 10, shape, generator=generator).to(kind)


def image(rank: int, kind: Any = torch.float32, layout: str = "contiguous") -> Any:
    return LAYOUTS[layout](numbers(0 if layout == "empty" else 2, 5, *(9, 8, 7)[:rank], kind=kind))


def last(value: Any, rank: int) -> Any:
    return value[:rank] if isinstance(value, tuple) else value


GEOMETRIES: dict[str, tuple[Any, ...]] = {
    "as in ResNets": (3, 2, 1),
    "side by side": (2,),
    "dilated": (3, 1, 1, 2),
    "different along each axis": ((3, 2, 1), (2, 1, 3), (1, 0, 0), (1, 2, 3)),
    "padded by half of the window": ((5, 4, 3), 3, (2, 2, 1)),
}
"""Kernel size, stride, padding and dilation."""


def pool(name: str, rank: int, x: Any, geometry: tuple[Any, ...]) -> tuple[Any, Any]:
    """(our result, torch's) of a function over `rank` axes."""
    given = [last(value, rank) for value in geometry]
    return getattr(functional, f"{name}{rank}d")(x, *given), getattr(F, f"{name}{rank}d")(x, *given)


def assert_same(result: Any, expected: Any) -> None:
    assert result.dtype is expected.dtype
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


# -- results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("rank", RANKS)
def test_the_largest_elements_are_torchs(rank: int, name: str, kind: Any, layout: str) -> None:
    x = image(rank, kind, layout)
    for _ in range(2):  # the second call repeats the launch of the first one
        assert_same(*pool("max_pool", rank, x, GEOMETRIES[name]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_means_of_images_are_torchs(rank: int, kind: Any, layout: str) -> None:
    x = image(rank, kind, layout)
    for _ in range(2):
        assert_same(*pool("adaptive_avg_pool", rank, x, (1,)))
        assert_same(*pool("adaptive_avg_pool", rank, x, ((1, 1, 1),)))


@pytest.mark.parametrize("name", ["max_pool", "adaptive_avg_pool"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nan_and_infinities_are_torchs(kind: Any, name: str) -> None:
    x = image(2, kind)
    x[0, 1, 4, 3], x[1, :, :5, :5], x[1, 2, 8, 7] = float("nan"), float("-inf"), float("inf")
    for layout in ("contiguous", "channels_last"):
        assert_same(*pool(name, 2, LAYOUTS[layout](x), (3, 2, 1) if name == "max_pool" else (1,)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_mean_of_many_pixels_is_near_that_of_float64(kind: Any) -> None:
    torch.manual_seed(0)
    x = (torch.rand(2, 5, 131, 127) + 1).to(kind)
    for layout in ("contiguous", "channels_last"):
        result = functional.adaptive_avg_pool2d(LAYOUTS[layout](x), 1)
        expected = F.adaptive_avg_pool2d(x.double(), 1)
        bound = {torch.float64: 1e-14, torch.float32: 2**-23}.get(kind) or torch.finfo(kind).eps
        assert ((result.double() - expected).abs() <= bound * expected).all()


@pytest.mark.parametrize("rank", RANKS)
def test_results_have_the_memory_format_of_images(rank: int) -> None:
    for layout in ("contiguous", "channels_last"):
        x = image(rank, layout=layout)
        for pooled in (
            getattr(functional, f"max_pool{rank}d")(x, 3, 2, 1),
            getattr(functional, f"adaptive_avg_pool{rank}d")(x, 1),
        ):
            assert (pooled.movedim(1, -1) if layout == "channels_last" else pooled).is_contiguous()
        if rank == 2:
            for ours, theirs in (pool("max_pool", 2, x, (3, 2, 1)), pool("adaptive_avg_pool", 2, x, (1,))):
                assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("rank", RANKS)
def test_a_single_image_has_a_result_without_a_batch(rank: int) -> None:
    x = image(rank)[0]
    assert_same(*pool("max_pool", rank, x, (3, 2, 1)))
    assert_same(*pool("adaptive_avg_pool", rank, x, (1,)))


# -- what follows calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", RANKS)
def test_vmap_makes_one_call(rank: int, recwarn: pytest.WarningsRecorder) -> None:
    x = numbers(3, 2, 5, *(6, 5, 4)[:rank])
    for dim in (0, 2):
        batch = x.movedim(0, dim)
        for name, options in (("max_pool", (3, 2, 1)), ("adaptive_avg_pool", (1,))):
            ours, theirs = (getattr(f, f"{name}{rank}d") for f in (functional, F))
            result = torch.vmap(lambda x, f=ours, o=options: f(x, *o), dim)(batch)
            assert torch.equal(result, torch.stack([theirs(each, *options) for each in x]))
    assert not recwarn.list


def test_autocast_leaves_types_as_torch_does() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for kind in KINDS:
            for result, expected in (
                pool("max_pool", 2, image(2, kind), (2,)),
                pool("adaptive_avg_pool", 2, image(2, kind), (1,)),
            ):
                assert result.dtype is expected.dtype is kind


@pytest.mark.filterwarnings("ignore")  # of compilers
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_makes_one_graph(backend: str) -> None:
    model = nn.Sequential(tilewright.torch.nn.MaxPool2d(3, 2, 1), nn.ReLU(), tilewright.torch.nn.AdaptiveAvgPool2d(1))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for n in (2, 3, 5):
        x = numbers(n, 4, 9 + n, 8).to(memory_format=torch.channels_last)
        assert torch.equal(compiled(x), F.adaptive_avg_pool2d(F.max_pool2d(x, 3, 2, 1).relu(), 1))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_make_fx_and_export_keep_one_node() -> None:
    traced = make_fx(lambda x: functional.max_pool2d(x, 3, 2, 1))(image(2))
    assert [n.target for n in traced.graph.nodes if n.op == "call_function"] == [OURS.max_pool2d.default]
    sizes = ({0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=3)},)
    exported = torch.export.export(tilewright.torch.nn.MaxPool2d(3, 2, 1), (image(2),), dynamic_shapes=sizes)
    other = numbers(3, 5, 11, 8)
    assert torch.equal(exported.module()(other), F.max_pool2d(other, 3, 2, 1))


# -- modules ----------------------------------------------------------------------------------------------------


class Stem(nn.Module):
    """What a ResNet has before and after its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.pool, self.mean, self.head = nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        x = self.pool(self.relu(self.bn(self.conv(x))))
        return self.head(torch.flatten(self.mean(x), 1))


@pytest.mark.filterwarnings("ignore")  # of compilers
def test_a_network_with_poolings_is_swapped_whole_and_is_one_graph() -> None:
    torch.manual_seed(0)
    model = Stem().eval()
    report = tilewright.torch.replace(model)
    assert report.kept == {}
    assert report.fused == {"relu": "conv"}
    assert report.swapped["pool"] == "MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)"
    assert report.swapped["mean"] == "AdaptiveAvgPool2d(output_size=(1, 1))"
    torch._dynamo.reset()
    with torch.no_grad():
        for form in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(2, 3, 13, 11).to(memory_format=form)
            torch.testing.assert_close(report.model(x), model(x))
        compiled = torch.compile(report.model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x))


def test_poolings_that_are_torchs_alone_are_kept_with_a_reason() -> None:
    model = nn.Sequential(
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool1d(2, return_indices=True),
        nn.AdaptiveAvgPool2d((1, None)),
        nn.AdaptiveAvgPool3d(2),
        nn.AvgPool2d(2),
    )
    assert tilewright.torch.replace(model.eval()).kept == {
        "0": "ceil_mode=True: sizes are rounded down here; use torch's own max pooling",
        "1": "return_indices=True: only values are computed here; use torch's own max pooling",
        "2": "output_size=(1, None): it must be 1 along each axis, the mean of the whole image; use torch's own",
        "3": "output_size=2: it must be 1 along each axis, the mean of the whole image; use torch's own",
        "4": "there is no operator for AvgPool2d",
    }
    kept = tilewright.torch.replace(nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool1d(1))).kept
    assert kept == {"0": "MaxPool2d has no backward, and the module is in training mode: call model.eval() first"}


# -- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 0}, r"kernel_size=0: an integer of at least 1"),
        ({"kernel_size": 10}, r"x has the sizes \(9, 8\): a window of \(10, 10\) does not fit"),
        ({"kernel_size": 2, "stride": (1, 0)}, r"stride=\[1, 0\]: 2 integers of at least 1, one for each axis"),
        ({"kernel_size": 2, "stride": (1, 1, 1)}, r"stride=\(1, 1, 1\): an integer of at least 1, or one for each"),
        (
            {"kernel_size": (3, 2), "padding": 2},
            r"padding=\[2, 2\]: 2 integers from 0 to half of the window, here \[1, 1\]",
        ),
        ({"kernel_size": 2, "padding": -1}, r"padding=-1: an integer of at least 0, or one for each axis"),
        ({"kernel_size": 2, "dilation": 0.5}, r"dilation=0\.5: an integer of at least 1"),
        ({"kernel_size": 2, "ceil_mode": True}, r"ceil_mode=True: sizes are rounded down here"),
        ({"kernel_size": 2, "return_indices": True}, r"return_indices=True: only values are computed here"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        functional.max_pool2d(image(2), **options)
    with pytest.raises(ArgumentError, match=message):
        tilewright.torch.nn.MaxPool2d(**options)(image(2))


def test_wrong_images_and_sizes_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"x holds i32; it must hold f16, bf16, f32 or f64"):
        functional.max_pool2d(image(2, torch.int32), 2)
    with pytest.raises(ArgumentError, match=r"x has shape \(9, 8\), 2 dimensions; it takes 4"):
        functional.adaptive_avg_pool2d(image(2)[0, 0], 1)
    with pytest.raises(ArgumentError, match=r"output_size=\(1, 2\): it must be 1 along each axis"):
        tilewright.torch.nn.AdaptiveAvgPool2d((1, 2))
    with pytest.raises(ArgumentError, match=r"output_size=None: it must be 1 along each axis"):
        functional.adaptive_avg_pool2d(image(2), None)
    with pytest.raises(ArgumentError, match=r"output_size=\[1, 1\]: 3 integers, one for each axis"):
        OURS.adaptive_avg_pool3d(image(3), [1, 1])
    with pytest.raises(ArgumentError, match=r"x has shape \(2, 5, 0, 8\): an image has a pixel along each axis"):
        functional.adaptive_avg_pool2d(image(2)[:, :, :0], 1)


def test_a_gradient_is_refused_in_one_line() -> None:
    layer = tilewright.torch.nn.MaxPool2d(2)
    with pytest.raises(MissingBackward, match=r"^torch\.ops\.tilewright\.max_pool2d has no backward: [^\n]*$"):
        layer(image(2).requires_grad_()).sum().backward()
