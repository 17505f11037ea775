"""Convolution and matrix-product problems: notation, lists of real layers, references, exact test data.

| file      | subject                                                                  |
|-----------|--------------------------------------------------------------------------|
| conv      | convolutions and their notation                                          |
| matmul    | matrix products and their notation                                       |
| notation  | numbers and names, common to both notations                              |
| batch     | files of problems with options; the lists of real layers in `shapes/`    |
| dtypes    | element types by their short names                                       |
| reference | reference results of the problems, in float64 or exactly in integers     |
| data      | operands with exact sums; real operands and their error bound            |
| mathematics | functions such as exp as machine code, against higher precision        |
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.errors import ProblemError
from tilewright.ir.dtypes import from_numpy
from tilewright.problems.batch import Problem, Settings, read_batch, shape_list, shape_lists
from tilewright.problems.conv import ConvProblem, parse_conv
from tilewright.problems.data import exact_data, nearest_bound, operand_shapes, real_bound, real_data, terms
from tilewright.problems.dtypes import Dtype, dtype
from tilewright.problems.matmul import MatmulProblem, parse_matmul
from tilewright.problems.reference import conv_dgrad, conv_forward, conv_wgrad, matmul_reference
from tilewright.signatures import check_all

__all__ = [
    "ConvProblem",
    "Dtype",
    "MatmulProblem",
    "Problem",
    "Settings",
    "conv_dgrad",
    "conv_forward",
    "conv_wgrad",
    "dtype",
    "exact_data",
    "matmul_reference",
    "nearest_bound",
    "operand_shapes",
    "parse_conv",
    "parse_matmul",
    "read_batch",
    "real_bound",
    "real_data",
    "shape_list",
    "shape_lists",
    "terms",
]


def _has_type(*kinds: Any) -> Callable[[Any], bool]:
    """Return a predicate that is True for values of the given Python types, except bools."""
    return lambda x: isinstance(x, kinds) and not isinstance(x, bool)


_KINDS = {
    "str": (_has_type(str), "a text"),
    "int": (_has_type(int, np.integer), "an integer"),
    "int | None": (_has_type(int, np.integer), "an integer"),
    "float | None": (_has_type(int, float), "a number"),
    "Array": (lambda x: isinstance(x, np.ndarray) and from_numpy(x.dtype) is not None, "an array of numbers"),
    "ConvProblem": (_has_type(ConvProblem), "a convolution: parse_conv reads one"),
    "MatmulProblem": (_has_type(MatmulProblem), "a matrix product: parse_matmul reads one"),
    "Problem": (_has_type(ConvProblem, MatmulProblem), "a problem: parse_conv and parse_matmul read one"),
    "np.random.Generator": (_has_type(np.random.Generator), "a numpy.random.Generator"),
}
check_all(globals(), __all__, _KINDS, ProblemError)
