"""Functions on arrays and layers with what lies on a GPU: results are exact, and lie there. Run by `make test-gpu`."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import kernels
from tilewright.runtime.device_arrays import DeviceArray
from tilewright.runtime.host import HostExecutor
from tilewright.targets.nvidia.driver import device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(device(), str), reason=f"no GPU: {device()}"),
]
torch = pytest.importorskip("torch")


def whole(*shape: int, dtype: Any = None, seed: int = 0) -> Any:
    chance = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-2, 3, shape, generator=chance).to(dtype or torch.bfloat16).cuda()


class Shared:
    """A tensor as another library has it: only DLPack can be asked for it."""

    def __init__(self, tensor: Any):
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.fixture
def binds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every call that is bound at length."""
    found: list[int] = []
    plain = HostExecutor.bind_whole
    monkeypatch.setattr(HostExecutor, "bind_whole", lambda *given, **named: found.append(1) or plain(*given, **named))
    return found


def same(found: Any, wanted: Any) -> None:
    assert found.is_cuda
    assert torch.equal(found.double(), wanted.double().to(found.device))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(200, 136, 200), (33, 41, 77), (64, 64, 4096), (1, 1000, 512), (1, 1, 1)])
def test_products_stay_on_the_device(m: int, n: int, k: int, bias: bool, binds: list[int]) -> None:
    for seed in range(3):
        a, b = whole(m, k, seed=seed), whole(k, n, seed=seed)
        added = whole(n, dtype=torch.float32, seed=seed) if bias else None
        found = tilewright.matmul(a, b, added, activation="relu", out_dtype="f32")
        wanted = (a.double() @ b.double() + (0 if added is None else added.double())).relu()
        same(found, wanted)
    assert len(binds) == 1  # calls like the first one only moved


def test_batches_of_products_stay_on_the_device() -> None:
    a, b = whole(3, 40, 72), whole(3, 72, 64)
    same(tilewright.matmul(a, b), (a.double() @ b.double()).bfloat16())
    same(tilewright.matmul(a, b[0].contiguous()), (a.double() @ b[0].double()).bfloat16())
    same(tilewright.matmul(a.transpose(1, 2).contiguous().transpose(1, 2), b), (a.double() @ b.double()).bfloat16())


CONVS = [
    ((3, 9, 7, 64), (72, 3, 3, 64), {"padding": 1}),
    ((2, 8, 9, 3), (40, 3, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 20, 8), (16, 5, 8), {"padding": "same", "dilation": 2}),
    ((1, 5, 6, 7, 16), (24, 2, 3, 1, 16), {"padding": (1, 0, 0)}),
    ((2, 9, 7, 32), (32, 3, 3, 1), {"padding": 1, "groups": 32}),
]


def convolved(x: Any, w: Any, bias: Any = None, padding: Any = 0, **options: Any) -> Any:
    """torch's own, on the host in f64, channels last."""
    rank = w.dim() - 2
    x, w = (t.double().cpu().movedim(-1, 1) for t in (x, w))
    call = getattr(torch.nn.functional, f"conv{rank}d")
    found = call(x, w, None if bias is None else bias.double().cpu(), padding=padding, **options)
    return found.movedim(1, -1)


@pytest.mark.parametrize(("image", "weight", "options"), CONVS)
def test_convolutions_stay_on_the_device(image: Any, weight: Any, options: Any, binds: list[int]) -> None:
    function = getattr(tilewright, f"conv{len(weight) - 2}d")
    w, bias = whole(*weight), whole(weight[0], dtype=torch.float32)
    layer = tilewright.Conv(w, bias, out_dtype="f32", **options)
    for seed in range(3):
        x = whole(*image, seed=seed)
        wanted = convolved(x, w, bias, **options)
        same(layer(x), wanted)
        same(function(x, w, bias, out_dtype="f32", **options), wanted)
    packed = 1 < weight[-1] < 8  # a layer whose weights are packed is bound anew at every call
    assert len(binds) == (4 if packed else 2)


def test_weights_of_the_host_are_brought_to_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ops import layers

    brought = []
    plain = layers.on_device
    monkeypatch.setattr(layers, "on_device", lambda *given: brought.append(1) or plain(*given))
    w, bias = whole(72, 3, 3, 64), whole(72, dtype=torch.float32)
    layer = tilewright.Conv2d(w.cpu(), bias.cpu().numpy(), padding=1, out_dtype="f32")
    for size in (9, 9, 12):
        x = whole(2, size, size, 64)
        same(layer(x), convolved(x, w, bias, padding=1))
    assert len(brought) == 2
    other = pickle.loads(pickle.dumps(layer))
    same(other(x), convolved(x, w, bias, padding=1))
    same(copy.deepcopy(tilewright.Conv2d(w, padding=1))(x), convolved(x, w, padding=1).bfloat16())


def test_weights_on_the_device_serve_images_of_the_host() -> None:
    w = whole(16, 3, 8, dtype=torch.float32)
    x = whole(2, 9, 8, dtype=torch.float32).cpu()
    found = tilewright.Conv1d(w, padding=1)(x)
    assert not found.is_cuda
    assert torch.equal(found.double(), convolved(x, w, padding=1))


def test_arrays_of_the_host_go_to_a_target_and_come_back() -> None:
    a, b = (whole(40, 40, seed=s).float().cpu().numpy().astype(np.float16) for s in (1, 2))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    found = tilewright.matmul(a, b, target="cuda")
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found.astype(np.float64), wanted)
    layer = tilewright.Linear(np.ascontiguousarray(b.T), target="cuda")
    assert np.array_equal(layer(a).astype(np.float64), wanted)


def test_a_linear_layer_stays_on_the_device(binds: list[int]) -> None:
    w, bias = whole(136, 72), whole(136, dtype=torch.float32)
    layer = tilewright.Linear(w, bias, activation="relu")
    for seed in range(3):
        x = whole(2, 50, 72, seed=seed)
        same(layer(x), (x.double() @ w.double().t() + bias.double()).relu().bfloat16())
    assert len(binds) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8])
def test_arrays_of_other_libraries_stay_on_the_device(dtype: Any) -> None:
    a, b = whole(40, 72, dtype=dtype), whole(72, 64, dtype=dtype)
    out = "i32" if dtype is torch.int8 else None
    found = tilewright.matmul(Shared(a), Shared(b), out_dtype=out)
    assert isinstance(found, DeviceArray)
    wanted = (a.double() @ b.double()).to(torch.int32 if dtype is torch.int8 else dtype)
    assert torch.equal(torch.from_dlpack(found), wanted)
    if dtype is not torch.bfloat16:
        assert torch.equal(torch.as_tensor(found, device="cuda"), wanted)
    made = tilewright.compile(kernels.gemm("nn", "bf16", "bf16"), target="cuda")(
        Shared(a.bfloat16()), Shared(b.bfloat16())
    )
    assert torch.equal(torch.from_dlpack(made).double(), (a.double() @ b.double()).bfloat16().double())


def test_a_result_without_torch_is_an_argument_again() -> None:
    a, b = whole(40, 72, dtype=torch.float32), whole(72, 72, dtype=torch.float32)
    found = tilewright.matmul(tilewright.matmul(Shared(a), Shared(b)), Shared(b))
    assert torch.equal(torch.from_dlpack(found).double(), a.double() @ b.double() @ b.double())


def test_tile_kernels_are_bound_once_for_each_size(binds: list[int]) -> None:
    run = tilewright.compile(kernels.gemm("nt", "bf16", "f32"), target="cuda")
    for seed in range(4):
        for m in (64, 200):
            a, b = whole(m, 4096, seed=seed), whole(72, 4096, seed=seed)
            same(run(a, b), a.double() @ b.double().t())
    assert len(binds) == 2


def test_another_stream_is_followed() -> None:
    a, b = whole(512, 512), whole(512, 512)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        c = a + 1
        found = tilewright.matmul(c, b)
        torch.cuda.current_stream().synchronize()
    same(found, (c.double() @ b.double()).bfloat16())
