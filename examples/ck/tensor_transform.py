"""One tensor seen through four layouts: what CK's tensor transform prints, as a program that stores what it sees.

A layout is a function from coordinates to an offset: `through` sees a tensor by it, and it may be called by hand.
"""

import numpy as np

import tilewright
import tilewright.block as tb
from tilewright.algebra import parse_layout

FLAT, SPLIT = parse_layout("(4,8):(1,4)"), parse_layout("(4,(2,4)):(2,(1,8))")
BOTH, DEEP = parse_layout("((2,2),(2,4)):((1,4),(2,8))"), parse_layout("(((2,2),2),4):(((1,4),2),8)")


@tb.kernel()
def tensor_transform(x: tb.In("i32", 32), flat: tb.Out("i32", 4, 8), split: tb.Out("i32", 4, 8),
                     both: tb.Out("i32", 4, 8), deep: tb.Out("i32", 32), upper: tb.Out("i32", 2, 8)):  # fmt: skip
    for _ in tb.tasks(1):
        tb.copy(x.through(FLAT), flat)
        tb.copy(x.through(SPLIT), split)
        tb.copy(x.through(BOTH), both)
        tb.copy(x.view((32,), lambda i: DEEP(i)), deep)
        tb.copy(x.through(SPLIT)[1:3, :], upper)  # a slice of a view is a view


def check(**options) -> None:
    """Every table against numpy: a layout's strides, sizes slowest to fastest, on the flat tensor."""
    x = np.arange(32, dtype=np.int32) * 3 - 7
    flat, split, both, deep, upper = tilewright.compile(tensor_transform, **options)(x)
    np.testing.assert_array_equal(flat, x.reshape(8, 4).T)
    np.testing.assert_array_equal(split, x.reshape(4, 4, 2).transpose(1, 0, 2).reshape(4, 8))
    np.testing.assert_array_equal(both, x.reshape(4, 2, 2, 2).transpose(1, 3, 0, 2).reshape(4, 8))
    np.testing.assert_array_equal(deep, x.reshape(4, 2, 2, 2).transpose(0, 2, 1, 3).reshape(-1))
    np.testing.assert_array_equal(upper, split[1:3])


if __name__ == "__main__":
    check(target="interpreter")
    print("tensor_transform: exact")
