"""What calls take: arrays with memory of their own, numbers that fit, tensors of torch; what is refused, and how."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError
from tilewright.runtime.overlap import overlaps_itself
from tilewright.runtime.scalars import scalar

M, N = tkl.sym.M, tkl.sym.N
f32_mn = tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]

DOUBLE = """block double(%x: in global f32 (2, 4), %y: out global f32 (2, 4))
{
  tasks m in 0..2 {
    %row = view %x (j 4) -> [m, j]
    %to = view %y (j 4) -> [m, j]
    map %to = %row + %row
  }
}"""


@tkw.wave()
def shifted(x: f32_mn, y: f32_mn, by: tkl.i32):
    tkw.write(tkw.read(x) + tkw.cast(by, tkl.f32), y)


@pytest.fixture(params=["executor", "cpu"])
def shift(request: pytest.FixtureRequest) -> Any:
    return tilewright.compile(shifted, target=request.param)


# -- arrays whose elements coincide -----------------------------------------------------------------------------


def distinct(array: np.ndarray[Any, Any]) -> bool:
    """Whether no byte of the array belongs to two elements, by looking at every one."""
    places = np.zeros(array.shape, np.int64)
    for dim, stride in enumerate(array.strides):
        places += np.arange(array.shape[dim]).reshape(-1, *([1] * (array.ndim - dim - 1))) * stride
    held = (places.reshape(-1, 1) + np.arange(array.itemsize)).reshape(-1)
    return len(np.unique(held)) == held.size


def test_overlap_is_found_exactly() -> None:
    rng = np.random.default_rng(0)
    room = np.zeros(400, np.int16)
    found = []
    for _ in range(600):
        rank = int(rng.integers(1, 5))
        shape = tuple(int(n) for n in rng.integers(0 if rng.random() < 0.1 else 1, 5, rank))
        strides = tuple(int(s) for s in rng.integers(-12, 13, rank) * (2 if rng.random() < 0.7 else 1))
        array = as_strided(room[200:], shape, strides)
        assert overlaps_itself(array) == (not distinct(array)), (shape, strides)
        found.append(overlaps_itself(array))
    assert 100 < sum(found) < 500
    # strides that do not nest, and yet no two elements meet: 6*i + 10*j with i < 5, j < 3 has no collision
    assert not overlaps_itself(as_strided(room, (5, 3), (12, 20)))
    assert overlaps_itself(as_strided(room, (6, 4), (12, 20)))


@pytest.mark.parametrize("strides", [(4, 4), (0, 4), (4, 0), (8, 4), (-4, 4)])
def test_an_overlapping_output_is_refused(shift: Any, strides: tuple[int, int]) -> None:
    x, b = np.ones((2, 4), np.float32), np.zeros(16, np.float32)
    out = as_strided(b[4:], (2, 4), strides)
    with pytest.raises(ArgumentError, match=r"argument y is written, but its shape \(2, 4\) and strides .* coincide"):
        shift(x, out, 1)
    assert not b.any()
    shift(x, as_strided(b, (2, 4), (4, 8)), 1)  # columns that lie side by side: strange, and right
    assert b.tolist() == [2] * 8 + [0] * 8


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_an_overlapping_output_of_a_text_is_refused(target: str) -> None:
    run = compile_text(DOUBLE, target)
    x, b = np.ones((2, 4), np.float32), np.zeros(8, np.float32)
    with pytest.raises(ArgumentError, match=r"double: argument y is written, but its shape \(2, 4\) and strides"):
        run(x, as_strided(b, (2, 4), (4, 4)))
    with pytest.raises(ArgumentError, match="double: y, which is written, shares memory with x"):
        run(x, x)
    with pytest.raises(ArgumentError, match="y is written, but the array given is read-only"):
        run(x, np.broadcast_to(b[:4], (2, 4)))
    assert not b.any()


def test_an_overlapping_output_of_a_layer_is_refused() -> None:
    layer = tilewright.Conv2d(np.ones((3, 1, 1, 2), np.float32))
    x = np.ones((1, 2, 5, 2), np.float32)
    out = np.zeros(60, np.float32)
    for wrong, says in (
        (as_strided(out, (1, 2, 5, 3), (0, 12, 4, 4)), "not contiguous"),
        (np.zeros((1, 2, 5, 4), np.float32), "out is 1x2x5x4 of float32; it must be 1x2x5x3 of f32"),
        (np.zeros((1, 2, 5, 3), np.float64), "out is 1x2x5x3 of float64; it must be 1x2x5x3 of f32"),
    ):
        with pytest.raises(ArgumentError, match=says):
            layer.bind(x, wrong)
    both = np.zeros(40, np.float32)
    with pytest.raises(ArgumentError, match="out shares memory with x"):
        layer.bind(both[:20].reshape(1, 2, 5, 2), both[10:].reshape(1, 2, 5, 3))
    made = np.zeros((1, 2, 5, 3), np.float32)
    layer.bind(x, made)()
    assert (made == 2).all()


def test_masked_arrays_do_not_lose_their_mask(shift: Any) -> None:
    x = np.ma.masked_array(np.ones((2, 3), np.float32), np.eye(2, 3, dtype=bool))
    plain = np.ones((2, 3), np.float32)
    says = r"x is a masked array, whose mask would be lost; pass x.filled\(value\)"
    with pytest.raises(ArgumentError, match=says):
        shift(x, 1)
    with pytest.raises(ArgumentError, match="y is a masked array"):
        shift(plain, x, 1)
    with pytest.raises(ArgumentError, match="by is a masked array"):
        shift(plain, np.ma.masked)
    with pytest.raises(ArgumentError, match="a is a masked array"):
        tilewright.matmul(x, plain)
    with pytest.raises(ArgumentError, match="argument x is a masked array"):
        compile_text(DOUBLE, target="interpreter")(np.ma.masked_array(np.ones((2, 4), np.float32)))


# -- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [3.5, 2**40, -(2**31) - 1, np.float64(0.5), np.int64(2**31), float("nan"), 1e300])
def test_an_i32_takes_no_number_that_it_does_not_hold(shift: Any, value: Any) -> None:
    with pytest.raises(ArgumentError) as report:
        shift(np.ones((2, 3), np.float32), value)
    assert f"shifted: argument by is {value.item() if hasattr(value, 'item') else value!r}; " in str(report.value)
    assert "it must be an integer in -2147483648..2147483647 (i32)" in str(report.value)


@pytest.mark.parametrize("value", [3, 3.0, np.int8(3), np.float32(3), np.array(3), ml_dtypes.bfloat16(3), 3 + False])
def test_an_i32_takes_every_form_of_an_integer(shift: Any, value: Any) -> None:
    assert (shift(np.ones((2, 3), np.float32), value) == 4).all()


@pytest.mark.parametrize(
    ("kind", "holds", "refuses"),
    [
        (tkl.bool, {1: True, 0.0: False}, [2, -1, 0.5, float("nan")]),
        (tkl.i4, {7: 7, -8: -8, ml_dtypes.int4(3): 3}, [8, -9]),
        (tkl.i8, {127: 127, -128: -128, True: 1}, [128, -129, 1.25]),
        (tkl.u8, {255: 255, 0: 0}, [256, -1]),
        (tkl.i64, {2**63 - 1: 2**63 - 1}, [2**63, float("inf")]),
        (tkl.f16, {65504: 65504.0, 65519.0: 65504.0, 0.1: float(np.float16(0.1))}, [1e6, 65520.0, -1e6, 10**400]),
        (tkl.bf16, {0.1: float(ml_dtypes.bfloat16(0.1)), float("inf"): float("inf")}, [1e39, 3.4e38]),
        (tkl.f32, {3.4028235e38: float(np.finfo(np.float32).max), 1e-60: 0.0}, [1e39]),
        (tkl.f64, {1e308: 1e308, 10**20: 1e20}, [10**400]),
        (tkl.f8e4m3fn, {448.0: 448.0, 0.3: 0.3125}, [500.0, float("inf")]),
    ],
)
def test_every_type_takes_what_it_holds(kind: Any, holds: dict[Any, Any], refuses: list[Any]) -> None:
    from tilewright.ir.dtypes import plain_number

    for value, wanted in holds.items():
        number = plain_number(value)
        assert number is not None
        found = scalar(number, kind, "x")
        assert found == wanted
        assert type(found) is type(wanted)
    for value in refuses:
        with pytest.raises(ArgumentError, match=r"x is .*; it must be "):
            scalar(value, kind, "x")
    if kind.is_float:
        assert np.isnan(scalar(float("nan"), kind, "x"))


def test_what_is_no_number_is_named(shift: Any) -> None:
    for value in ("3", 3j, np.complex64(1), np.datetime64("2020-01-01"), [3], np.array([3]), object):
        with pytest.raises(ArgumentError, match=r"argument by is .*; it must be a number of type i32"):
            shift(np.ones((2, 3), np.float32), value)


# -- torch: what came in comes out; a stand-in, where the real one is not installed -------------------------------


class Tensor:
    """As much of a torch tensor as arguments are asked for."""

    def __init__(self, array: np.ndarray[Any, Any], **marks: Any):
        self.array, self.marks = array, marks
        self.requires_grad = marks.get("requires_grad", False)
        self.layout = marks.get("layout", "strided")
        self.is_quantized = marks.get("is_quantized", False)
        self.device = SimpleNamespace(type=marks.get("device", "cpu"), __str__=lambda: "cuda:0")
        self.dtype, self.ndim = array.dtype.name, array.ndim
        self.is_cuda, self._version = False, 0

    def is_neg(self) -> bool:
        return bool(self.marks.get("neg"))

    def is_conj(self) -> bool:
        return bool(self.marks.get("conj"))

    def is_inference(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array

    def __dlpack__(self) -> Any:
        raise AssertionError("torch tensors are not read by way of DLPack")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = ModuleType("torch")
    made.__dict__.update(Tensor=Tensor, strided="strided", from_numpy=Tensor, float32="float32")
    made.__dict__.update(is_grad_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


REFUSED = [
    ({"requires_grad": True}, r"needs gradients \(requires_grad\), which are not computed here; pass {}.detach\(\)"),
    ({"layout": "sparse_coo"}, r"is sparse or packed \(its layout is sparse_coo\); pass {}.to_dense\(\)"),
    ({"is_quantized": True}, r"is quantised \(float32\); pass {}.dequantize\(\)"),
    ({"device": "cuda"}, r"lies on the device .*, and this target runs on the CPU; pass {}.cpu\(\)"),
    ({"neg": True}, r"is a negated view, whose memory holds other numbers; pass {}.resolve_neg\(\)"),
    ({"conj": True}, r"is a conjugated view, whose memory holds other numbers; pass {}.resolve_conj\(\)"),
]


@pytest.mark.parametrize(("marks", "says"), REFUSED)
def test_tensors_whose_memory_is_not_their_value_are_refused(
    torch: Any, shift: Any, marks: dict[str, Any], says: str
) -> None:
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    with pytest.raises(ArgumentError, match=f"argument x {says.format('x')}"):
        shift(Tensor(x, **marks), 1)
    with pytest.raises(ArgumentError, match=f"argument y {says.format('y')}"):
        shift(Tensor(x), Tensor(y, **marks), 1)
    assert not y.any()
    if "device" not in marks:  # functions on arrays and layers go where their arrays lie
        with pytest.raises(ArgumentError, match=f"a {says.format('a')}"):
            tilewright.matmul(Tensor(x, **marks), x)
        with pytest.raises(ArgumentError, match=f"weight {says.format('weight')}"):
            tilewright.Conv1d(Tensor(np.ones((1, 2, 3), np.float32), **marks))
    with pytest.raises(ArgumentError, match=f"argument x {says.format('x')}"):
        compile_text(DOUBLE, target="interpreter")(Tensor(np.ones((2, 4), np.float32), **marks))


def test_torch_in_torch_out_and_numpy_in_numpy_out(torch: Any, shift: Any) -> None:
    x = np.ones((2, 3), np.float32)
    assert type(shift(x, 1)) is np.ndarray
    assert type(shift(x, Tensor(np.array(1)))) is np.ndarray  # a number has no form
    made = shift(Tensor(x), 1)
    assert type(made) is Tensor
    assert (made.array == 2).all()
    out = Tensor(np.zeros((2, 3), np.float32))
    assert shift(Tensor(x), out, 1) is None
    assert (out.array == 2).all()
    assert type(compile_text(DOUBLE, target="interpreter")(Tensor(np.ones((2, 4), np.float32)))) is Tensor
    for first, form in ((Tensor(x), Tensor), (x, np.ndarray)):  # the first array decides
        assert type(tilewright.matmul(first, Tensor(x.T))) is form
        assert type(tilewright.matmul(first, x.T)) is form
        image = Tensor(x[None]) if form is Tensor else x[None]
        assert type(tilewright.conv1d(image, np.ones((1, 1, 3), np.float32))) is form
        assert type(tilewright.Conv1d(Tensor(np.ones((1, 1, 3), np.float32)))(image)) is form


def test_a_result_that_torch_has_no_type_for_is_refused_before_it_is_computed(torch: Any) -> None:
    x = Tensor(np.ones((2, 3), np.float32))
    with pytest.raises(ArgumentError, match="the result holds f16, for which torch has no type; pass numpy arrays"):
        tilewright.matmul(x, Tensor(np.ones((3, 2), np.float32)), out_dtype="f16")


def test_real_torch_tensors_come_back_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    run = tilewright.compile(shifted, target="executor")
    x = torch.ones(2, 3)
    made = run(x, torch.tensor(2))
    assert isinstance(made, torch.Tensor)
    assert torch.equal(made, torch.full((2, 3), 3.0))
    a = torch.ones(2, 3, dtype=torch.bfloat16)
    assert tilewright.matmul(a, a.T).dtype is torch.bfloat16
    assert torch.equal(tilewright.matmul(a, a.T), torch.full((2, 2), 3, dtype=torch.bfloat16))
    layer = tilewright.Conv1d(torch.ones(4, 1, 3))
    assert torch.equal(layer(torch.ones(1, 5, 3)), torch.full((1, 5, 4), 3.0))
    assert layer(torch.ones(0, 5, 3)).shape == (0, 5, 4)


@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore:torch.quantize", "ignore:The PyTorch API of nested")
def test_real_torch_tensors_that_are_refused() -> None:
    torch = pytest.importorskip("torch")
    run = tilewright.compile(shifted, target="executor")
    x = torch.ones(2, 3)
    needs = torch.ones(2, 3, requires_grad=True)
    wrong = [
        (needs, r"requires_grad.*\.detach\(\)"),
        (needs * 2, r"requires_grad.*\.detach\(\)"),
        (torch.nn.Parameter(x.clone()), r"requires_grad.*\.detach\(\)"),
        (x.to_sparse(), r"sparse.*\.to_dense\(\)"),
        (torch._neg_view(x), r"negated.*\.resolve_neg\(\)"),
        (torch.imag(torch.ones(2, 3, dtype=torch.complex64).conj()), r"negated.*\.resolve_neg\(\)"),
        (torch.ones(2, 3, dtype=torch.complex64).conj(), r"conjugated.*\.resolve_conj\(\)"),
        (torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), r"quantised.*\.dequantize\(\)"),
        (x.to("meta"), "lies on the device meta"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    ]
    for tensor, says in wrong:
        with pytest.raises(ArgumentError, match=f"argument x .*{says}"):
            run(tensor, 1)
        with pytest.raises(ArgumentError, match=f"argument y .*{says}"):
            run(x, tensor, 1)
    assert torch.equal(needs.detach(), x)  # a leaf given as output is not overwritten
    assert torch.equal(run(needs.detach(), 1), x + 1)
    with pytest.raises(ArgumentError, match=r"argument by needs gradients"):
        run(x, torch.tensor(1.0, requires_grad=True))
