"""Mathematical functions as LLVM IR: no library is called, and any number of lanes gives the same bits.

| file           | subject                                                                |
|----------------|------------------------------------------------------------------------|
| lanes          | arithmetic on vectors: Python operators that emit LLVM instructions    |
| coefficients   | the polynomials' coefficients                                          |
| exponential    | exp, exp2, expm1, tanh, sigmoid                                        |
| logarithm      | log, log2, log10, log1p                                                |
| circular       | sin, cos                                                               |
| angles         | range reduction of large angles modulo pi/2                            |
| error_function | erf                                                                    |
| power          | pow                                                                    |
| hyperbolic     | sinh, cosh                                                             |
| root           | the cube root                                                          |
| arctangent     | atan2                                                                  |
| remainder      | fmod                                                                   |
| calls          | the functions by name, inlined or called                               |

Results are within 2 units in the last place (ulp) for all finite numbers, subnormal ones too. Results of machines with
fused multiply-add may differ in the last bits from those without.
"""

from tilewright.codegen.mathematics.calls import FUNCTIONS, emit_function

__all__ = ["FUNCTIONS", "emit_function"]
