"""A factor that stays in registers over all rounds of a loop, with and without products that go ahead."""

from __future__ import annotations

import pytest

from tilewright import kernels
from tilewright.compiler.native import kernel_for

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("keys", [130, 200, 330, 512])
@pytest.mark.parametrize("overlap", ["overlap mma ahead\n", ""])
def test_queries_are_the_same_in_every_round(overlap: str, keys: int) -> None:
    kernel, sizes = kernels.attention(64, "f16"), {"B": 2, "H": 2, "M": 65, "N": keys, "D": 64, "E": 64}
    plan = kernel_for(kernel, sizes, target="gpu:hopper").text("plan").replace("overlap mma ahead\n", overlap)
    made = kernel_for(kernel, sizes, target="gpu", plan=plan)
    q, k, v = (torch.randn(2, 2, n, 64, device="cuda", dtype=torch.float16) for n in (65, keys, keys))
    out = torch.full_like(q, float("nan"))
    names = [a.name for a in made.module.host.args]
    made.bind(dict(zip(names, (q, k, v, out), strict=True)))()
    scores = q.double() @ k.double().transpose(-1, -2) / 8
    wanted = torch.softmax(scores, -1) @ v.double()
    assert bool(((out.double() - wanted).abs() < 2e-3).all())
