"""`operator(kernel)`: kernels of authors as operators, with backwards that they name."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright
import tilewright.lang as tkl
import tilewright.torch
import tilewright.wave as tkw
from tilewright.errors import ArgumentError, BatchLoopWarning, MissingBackward
from tilewright.kernels import conv, reduction

M, N, G = tkl.sym.M, tkl.sym.N, tkl.GLOBAL_ADDRESS_SPACE
Matrix, Column = tkl.Memory[M, N, G, tkl.f64], tkl.Memory[M, G, tkl.f64]


@tkw.wave()
def squares(x: Matrix, scale: tkl.f64, y: Matrix, total: Column) -> None:
    rows = tkw.read(x)
    tkw.write(rows * rows * scale, y)
    tkw.write(tkw.sum(rows, dim=N), total)


@tkw.wave()
def squares_gradient(x: Matrix, scale: tkl.f64, dy: Matrix, dtotal: Column, dx: Matrix) -> None:
    tkw.write(tkw.read(x) * tkw.read(dy) * 2.0 * scale + tkw.read(dtotal), dx)


@pytest.fixture(scope="module")
def operator() -> Any:
    return tilewright.torch.operator(squares, "of_test_squares", backward={"x": squares_gradient}, batch="M")


def matrix(*shape: int) -> Any:
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64).view(shape)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's check itself
def test_a_kernel_with_several_outputs_and_a_number_is_an_operator(operator: Any) -> None:
    assert str(operator.default._schema) == "tilewright::of_test_squares(Tensor x, float scale) -> (Tensor, Tensor)"
    x = matrix(3, 5)
    y, total = operator(x, 2.0)
    assert torch.equal(y, 2 * x * x)
    assert torch.equal(total, x.sum(1))
    torch.library.opcheck(operator.default, (x.requires_grad_(), 2.0))


def test_kernels_give_the_gradients_that_their_names_ask_for(operator: Any) -> None:
    x = matrix(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: operator(x, 0.5), (x,))


def test_a_batch_dimension_takes_vmap_in_one_call(operator: Any, recwarn: Any) -> None:
    x = matrix(2, 3, 5)
    y, total = torch.vmap(lambda x: operator(x, 2.0))(x)
    assert torch.equal(y, 2 * x * x)
    assert torch.equal(total, x.sum(2))
    assert not recwarn


def test_a_function_gives_the_gradient_and_may_read_the_output() -> None:
    def backward(gradient: Any, x: Any, *, output: Any) -> Any:
        return gradient[:, None] * (x == output[:, None])

    largest = tilewright.torch.operator(reduction("max"), "of_test_max", backward=backward)
    x = torch.tensor([[1.0, 5.0, 2.0], [7.0, 0.0, 3.0]], requires_grad=True)
    largest(x).backward(torch.tensor([10.0, 20.0]))
    assert torch.equal(x.grad, torch.tensor([[0.0, 10.0, 0.0], [20.0, 0.0, 0.0]]))


def test_an_operator_without_a_backward_says_so() -> None:
    sums = tilewright.torch.operator(tilewright.compile(reduction("sum")), "of_test_no_backward")
    made = sums(torch.ones(2, 3, requires_grad=True))
    with pytest.raises(MissingBackward, match=r"^torch\.ops\.tilewright\.of_test_no_backward has no backward"):
        made.sum().backward()
    with pytest.warns(BatchLoopWarning, match="of_test_no_backward has no batch dimension"):
        assert torch.vmap(sums)(torch.ones(4, 2, 3)).shape == (4, 2)


def test_sizes_stay_open_while_a_call_is_traced() -> None:
    strided = tilewright.torch.operator(conv((3,), "f32", stride=2, padding=1), "of_test_strided")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    call = torch.compile(lambda x, w: strided(x, w) + 1, fullgraph=True, dynamic=True, backend="aot_eager")
    for n, size in ((2, 9), (3, 8), (5, 7)):
        x, w = torch.ones(n, size, 3), torch.ones(4, 3, 3)
        expected = torch.nn.functional.conv1d(x.mT, w.mT, stride=2, padding=1).mT
        assert torch.equal(call(x, w), expected + 1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


BLOCK = """block double(%x: in global f32 (M, N), %y: out global f32 (M, N))
  param M in 1..1000, N in 1..1000
{
  tasks m in 0..M {
    %row = view %x (j N) -> [m, j]
    %to = view %y (j N) -> [m, j]
    map %to = %row + %row
  }
}"""


def test_texts_of_the_block_level_are_operators_too() -> None:
    double = tilewright.torch.operator(tilewright.compile_text(BLOCK), "of_test_double")
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(double(x), 2 * x)
    torch.library.opcheck(double.default, (x,))
    with pytest.raises(ArgumentError, match="double reads and writes y: an operator makes its outputs"):
        tilewright.torch.operator(tilewright.compile_text(BLOCK.replace("%y: out", "%y: inout")), "of_test_in_place")


def test_wrong_tensors_are_named(operator: Any) -> None:
    for given, message in (
        ((matrix(3, 5).float(), 1.0), "squares: argument x holds f32; it must hold f64"),
        ((matrix(5), 1.0), r"squares: argument x has shape \(5,\), 1 dimensions; it takes 2"),
    ):
        with pytest.raises(ArgumentError, match=message):
            operator(*given)
    strided = tilewright.torch.operator(conv((3,), "f32"), "of_test_conv")
    with pytest.raises(ArgumentError, match="conv: argument w: dimension 2 is 2; C is 3 here"):
        strided(torch.ones(1, 5, 3), torch.ones(4, 3, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "two words"}, "name='two words': an operator's name is letters"),
        ({"name": "linear"}, r"name='linear': torch\.ops\.tilewright\.linear exists already"),
        ({"name": "of_test_a", "backward": 3}, "backward=3: a function, or a dictionary"),
        (
            {"name": "of_test_e", "backward": lambda g: g},
            r"backward of of_test_e is called with \(gradient, x, scale\), and takes \(g\): too many positional",
        ),
        (
            {"name": "of_test_b", "backward": {"z": squares_gradient}},
            "backward: of_test_b has no input 'z'; it has x, scale",
        ),
        ({"name": "of_test_c", "backward": {"x": reduction("sum", dtype="f32")}}, None),
        ({"name": "of_test_d", "batch": "K"}, "batch='K': no input, or not every output"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str | None) -> None:
    if message is None:  # a kernel whose arguments all have names of this one's is taken
        tilewright.torch.operator(squares, **options)
        return
    with pytest.raises(ArgumentError, match=message):
        tilewright.torch.operator(squares, **options)
