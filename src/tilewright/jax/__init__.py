"""Kernels and operators as functions of JAX (extra `jax`): under jit, grad, vmap and shard_map, on CPUs.

XLA calls the machine code itself, through its FFI; no C compiler is needed, and no Python runs during a call. Kernels
that are compiled for a GPU are launched from Python, on XLA's stream.

>>> import jax, jax.numpy as jnp, tilewright, tilewright.jax
>>> gemm = tilewright.jax.function(tilewright.compile(tilewright.kernels.gemm("nn", "f32")))
>>> jax.jit(gemm)(jnp.ones((2, 3)), jnp.ones((3, 4)))
Array([[3., 3., 3., 3.],
       [3., 3., 3., 3.]], dtype=float32)

| file      | subject                                                              |
|-----------|----------------------------------------------------------------------|
| handler   | FFI handlers in LLVM text, and how they are loaded                   |
| entries   | the entry of a kernel, as the handler calls it                       |
| frames    | XLA's call frames, read by Python                                    |
| gpu       | a kernel on a GPU: launched on the buffers and the stream of a frame |
| registry  | programs that XLA calls by name                                      |
| members   | what a compiled kernel does for arrays of given shapes               |
| functions | a compiled kernel as a function of JAX                               |
| operators | what the operators share: checks, calls, rules of derivatives, vmap  |
| products, convolutions | `matmul`; `conv1d`, `conv2d`, `conv3d`                  |
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
