"""Compiled kernels and operators as JAX functions, for jit, grad, vmap and shard_map. It needs JAX (extra `jax`).

On CPUs, XLA calls the kernels' machine code through its FFI; no C compiler is needed, and no Python runs during a call.
Kernels on a GPU are launched from Python, on XLA's stream.

>>> import jax, jax.numpy as jnp, tilewright, tilewright.jax
>>> gemm = tilewright.jax.function(tilewright.compile(tilewright.kernels.gemm("nn", "f32")))
>>> jax.jit(gemm)(jnp.ones((2, 3)), jnp.ones((3, 4)))
Array([[3., 3., 3., 3.],
       [3., 3., 3., 3.]], dtype=float32)

| file         | subject                                                                          |
|--------------|----------------------------------------------------------------------------------|
| handler      | XLA FFI handlers (C functions for custom calls) as LLVM text, and their linking  |
| entries      | the table from which a handler calls a kernel on a CPU                           |
| frames       | XLA's call frames, read from Python: buffers, stream, device, errors             |
| gpu          | a kernel on a GPU, launched on the buffers and the stream of a call frame        |
| registry     | registration of kernels as custom calls of XLA                                   |
| platforms    | kernel calls that are compiled when JAX lowers a program, for its platform       |
| members      | compiled kernels: their arguments, and their code for arrays of given shapes     |
| functions    | `function`: a compiled kernel as a JAX function                                  |
| operators    | common parts of operators: checks, and rules for gradients and vmap              |
| products     | `matmul`                                                                         |
| convolutions | `conv1d`, `conv2d`, `conv3d`                                                     |
"""

from tilewright.errors import MissingPackage

try:
    import jax
except ImportError:
    raise MissingPackage("tilewright.jax needs JAX, which is not installed; pip install 'tilewright[jax]'") from None
if jax.__version_info__ < (0, 10):
    raise MissingPackage(
        f"tilewright.jax needs JAX 0.10 or newer, not {jax.__version__}; pip install 'tilewright[jax]'"
    )

from tilewright.jax.convolutions import conv1d, conv2d, conv3d
from tilewright.jax.functions import JaxFunction, function
from tilewright.jax.products import matmul

__all__ = ["JaxFunction", "conv1d", "conv2d", "conv3d", "function", "matmul"]
