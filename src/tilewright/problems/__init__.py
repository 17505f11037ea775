"""Convolution and matrix-product problems: notation, lists of real layers, references, exact test data.

| file      | subject                                                                  |
|-----------|--------------------------------------------------------------------------|
| conv      | convolutions and their notation                                          |
| matmul    | matrix products and their notation                                       |
| notation  | numbers and names, common to both notations                              |
| batch     | files of problems with options; the lists of real layers in `shapes/`    |
| dtypes    | element types by their short names                                       |
| reference | what the problems mean, in float64 or exactly in integers                |
| data      | operands with exact sums; real operands and their error bound            |
| mathematics | functions such as exp as machine code, against higher precision        |
"""

from tilewright.problems.batch import Problem, Settings, read_batch, shape_list, shape_lists
from tilewright.problems.conv import ConvProblem, parse_conv
from tilewright.problems.data import exact_data, operand_shapes, real_bound, real_data, terms
from tilewright.problems.dtypes import Dtype, dtype
from tilewright.problems.matmul import MatmulProblem, parse_matmul
from tilewright.problems.reference import conv_dgrad, conv_forward, conv_wgrad, matmul_reference

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
