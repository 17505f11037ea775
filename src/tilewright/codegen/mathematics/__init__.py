"""Vector mathematics in LLVM text: no library is called, and any number of lanes gives the same bits.

| file           | what                                                                   |
|----------------|------------------------------------------------------------------------|
| lanes          | arithmetic in lanes, as functions are written in it                    |
| coefficients   | the polynomials' tables                                                |
| exponential    | exp, exp2, expm1, tanh, sigmoid                                        |
| logarithm      | log, log2, log10, log1p                                                |
| circular       | sin, cos                                                               |
| angles         | large angles modulo pi/2                                               |
| error_function | erf                                                                    |
| power          | pow                                                                    |
| hyperbolic     | sinh, cosh                                                             |
| root           | the cube root                                                          |
| arctangent     | atan2                                                                  |
| remainder      | fmod                                                                   |
| calls          | the functions by name, in place or called                              |

Results are within 2 units in the last place, over all finite numbers, subnormal ones too. A machine with fused
multiply-add and one without may differ in the last bits.
"""

from tilewright.codegen.mathematics.calls import FUNCTIONS, written

__all__ = ["FUNCTIONS", "written"]
