"""Calls on a GPU: open sizes, strides, streams, threads, CUDA graphs. Run by `make test-gpu`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright import compile_text, kernels
from tilewright.errors import ArgumentError
from tilewright.targets.nvidia.driver import device

torch = pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples" / "block"
OPEN = (
    ("param M = 256, N = 256, K = 256", "param M in 1..65536, N in 1..65536, K in 1..65536"),
    ("min(GROUP, TM - first)", "max(1, min(GROUP, TM - first))"),
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(device(), str), reason=f"no GPU: {device()}"),
]


def text_of(name: str, *changes: tuple[str, str]) -> str:
    text = (EXAMPLES / f"{name}.block").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def integers(*shape: int) -> Any:
    return torch.randint(-3, 4, shape, device="cuda").to(torch.bfloat16)


@pytest.mark.parametrize("name", ["gemm_hopper", "gemm_hopper_pingpong"])
def test_one_kernel_for_all_sizes(name: str) -> None:
    run = compile_text(text_of(name, *OPEN), "gpu")
    for m, n, k in ((200, 136, 200), (5, 8, 8), (1000, 520, 72), (4096, 2048, 1024), (200, 136, 200)):
        a, b = integers(m, k), integers(n, k)
        for _ in range(3):  # the first is bound, the others only move
            assert torch.equal(run(a, b), torch.mm(a, b.t()))


def test_one_convolution_for_all_images() -> None:
    sizes = ("param N = 2, H = 14, W = 14,", "param N in 1..256, H in 1..128, W in 1..128\n  param")
    run = compile_text(text_of("conv_hopper", sizes), "gpu")
    for n, h, w in ((2, 14, 14), (3, 9, 7), (1, 28, 31)):
        x, f = integers(n, h, w, 64), integers(64, 3, 3, 64)
        wanted = torch.nn.functional.conv2d(
            x.permute(0, 3, 1, 2).double(), f.permute(0, 3, 1, 2).double(), padding=1
        ).permute(0, 2, 3, 1)
        assert torch.equal(run(x, f), wanted.to(torch.bfloat16))


def test_one_attention_for_all_lengths() -> None:
    sizes = ("param B = 2, T = 256, U = 256,", "param B in 1..256, T in 1..65536, U in 64..65536\n  param")
    run = compile_text(text_of("flash_hopper", sizes), "gpu")
    bound = compile_text(text_of("flash_hopper"), "gpu", {"B": 3, "T": 200, "U": 192})
    q, k, v = (torch.randn(3, n, 128, device="cuda", dtype=torch.bfloat16) for n in (200, 192, 192))
    assert torch.equal(run(q, k, v), bound(q, k, v))
    assert run(q[:1], k[:1, :64].contiguous(), v[:1, :64].contiguous()).shape == (1, 200, 128)


@pytest.mark.parametrize("dynamic", [["M"], ["M", "N"]])
def test_one_tile_kernel_for_all_sizes(dynamic: list[str]) -> None:
    run = tilewright.compile(kernels.gemm("nt", "bf16", "bf16"), target="gpu", dynamic=dynamic)
    more = ((64, 520, 136), (70, 41, 136)) if "N" in dynamic else ()
    for m, n, k in ((200, 136, 136), (5, 136, 136), (4096, 136, 136), *more):
        a, b = integers(m, k), integers(n, k)
        for _ in range(2):
            assert torch.equal(run(a, b), torch.mm(a, b.t()))
    assert len(run._kernels) == 1


def test_tensors_with_strides_that_the_text_states() -> None:
    stated = (("bf16 (M, K),", "bf16 (M, K):(LD, 1),"), ("1..65536, N", "1..65536, LD in 8..99999, N"))
    run = compile_text(text_of("gemm_hopper", *OPEN, *stated), "gpu")
    for m, n, k, width in ((200, 136, 72, 128), (300, 64, 64, 72), (200, 136, 72, 128)):
        a, b = integers(m, width)[:, :k], integers(n, k)
        for _ in range(2):
            assert torch.equal(run(a, b), torch.mm(a, b.t()))
    with pytest.raises(ArgumentError, match="the stride of dimension 0 is 1"):
        run(integers(64, 64).t(), integers(64, 64))
    with pytest.raises(ArgumentError, match="d is not contiguous"):
        run(integers(64, 64), integers(64, 64), integers(64, 128)[:, :64])


def test_every_launch_goes_to_the_current_stream() -> None:
    """A kernel that waits behind a long one on its stream, and is waited for there, sees what that one wrote."""
    run = compile_text(text_of("gemm_hopper"), "gpu", {"M": 512, "N": 512, "K": 512})
    a, b, d = integers(512, 512), integers(512, 512), torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16)
    bound = run.bind(a, b, d)
    for launch in (bound, lambda: run(a, b, d)):
        for _ in range(10):
            stream = torch.cuda.Stream()
            new = integers(512, 512)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                a.copy_(new)
                launch()
                found = d.clone()
            torch.cuda.current_stream().wait_stream(stream)
            assert torch.equal(found, torch.mm(new, b.t()))


def test_streams_at_a_time_have_workspaces_of_their_own() -> None:
    """Few long sums: two launches, with parts of the sums between them."""
    run = tilewright.compile(kernels.gemm("nt", "bf16", "bf16"), target="gpu")
    assert "workspace" in run.of_sizes({"M": 64, "N": 64, "K": 16384}).text("host")
    streams = [torch.cuda.Stream() for _ in range(4)]
    pairs = [(integers(64, 16384).clamp(0, 1), integers(64, 16384).clamp(0, 1)) for _ in streams]
    torch.cuda.synchronize()
    found = []
    for _ in range(25):
        for stream, (a, b) in zip(streams, pairs, strict=True):
            with torch.cuda.stream(stream):
                found.append((run(a, b), a, b))
    torch.cuda.synchronize()
    for d, a, b in found:
        assert torch.equal(d, torch.mm(a.double(), b.double().t()).to(torch.bfloat16))


def test_threads_on_streams_of_their_own() -> None:
    run = compile_text(text_of("gemm_hopper"), "gpu", {"M": 512, "N": 512, "K": 512})

    def one(_: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            a, b = integers(512, 512), integers(512, 512)
            return torch.equal(run(a, b), torch.mm(a, b.t()))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(100)))


def test_a_graph_replays_launches_bound_calls_and_workspaces() -> None:
    run = compile_text(text_of("gemm_hopper"), "gpu", {"M": 512, "N": 256, "K": 512})
    parts = tilewright.compile(kernels.gemm("nt", "bf16", "bf16"), target="gpu")
    a, b, d = integers(512, 512), integers(256, 512), torch.zeros(512, 256, device="cuda", dtype=torch.bfloat16)
    x, y = integers(64, 16384).clamp(0, 1), integers(64, 16384).clamp(0, 1)
    bound = run.bind(a, b, d)
    run(a, b), parts(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound()
        made = run(a, b)
        sums = parts(x, y)
    for _ in range(3):
        a.copy_(integers(512, 512))
        x.copy_(integers(64, 16384).clamp(0, 1))
        other = parts(y, y)  # a call between replays has a workspace of its own
        d.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(d, torch.mm(a, b.t()))
        assert torch.equal(made, d)
        assert torch.equal(sums, torch.mm(x.double(), y.double().t()).to(torch.bfloat16))
        assert torch.equal(other, torch.mm(y.double(), y.double().t()).to(torch.bfloat16))


def test_drawn_tasks_are_each_done_once_however_many_launches() -> None:
    run = compile_text(text_of("flash_hopper"), "gpu", {"B": 4, "T": 512, "U": 512, "CAUSAL": 1, "BK": 128})
    q, k, v = (torch.randn(4, 512, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    first = run(q, k, v)
    assert all(torch.equal(run(q, k, v), first) for _ in range(1500))


@pytest.mark.parametrize("ways", [("early", "early"), ("early", "plain"), ("plain", "early")])
@pytest.mark.parametrize(("m", "n"), [(1000, 1000), (333, 776), (37, 520)])
def test_launches_in_a_row_see_what_the_one_before_wrote(m: int, n: int, ways: tuple[str, str]) -> None:
    """Each begins while the one before ends: what that writes it reads, and what that reads it writes."""
    product, sizes = kernels.gemm("nt", "bf16", "bf16"), {"M": m, "N": n, "K": n}
    text = tilewright.compile(product, target="gpu").text("plan", sizes)
    runs = [
        tilewright.compile(product, target="gpu", plan=text.replace("launch early", f"launch {way}")) for way in ways
    ]
    turned = torch.eye(n, device="cuda", dtype=torch.bfloat16)[torch.randperm(n, device="cuda")]
    w = turned * (2 * torch.randint(0, 2, (n, 1), device="cuda") - 1).to(torch.bfloat16)  # moves and negates columns
    x, y = integers(m, n), torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16)
    start, wanted = x.clone(), x.double()
    for _ in range(50):
        wanted = wanted @ w.double().t()
    there, back = runs[0].bind(x, w, y), runs[1].bind(y, w, x)

    def all_of_them() -> None:
        for _ in range(25):
            there()
            back()

    graph = torch.cuda.CUDAGraph()
    all_of_them()
    with torch.cuda.graph(graph):
        all_of_them()
    for again in (all_of_them, graph.replay):
        for _ in range(10):
            x.copy_(start)
            y.fill_(torch.nan)
            again()
            assert torch.equal(x.double(), wanted)
