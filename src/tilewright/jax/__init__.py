"""Kernels and operators as functions of JAX (extra `jax`): under jit, grad, vmap and shard_map, on CPUs.

XLA calls the machine code itself, through its FFI; no C compiler is needed, and no Python runs during a call.

>>> import jax, jax.numpy as jnp, tilewright, tilewright.jax
>>> gemm = tilewright.jax.function(tilewright.compile(tilewright.kernels.gemm("nn", "f32")))
>>> jax.jit(gemm)(jnp.ones((2, 3)), jnp.ones((3, 4)))
Array([[3., 3., 3., 3.],
       [3., 3., 3., 3.]], dtype=float32)

| file      | subject                                                              |
|-----------|----------------------------------------------------------------------|
| handler   | the FFI handler in LLVM text, and how it is loaded                   |
| table     | the steps of a program, as the handler reads them                    |
| registry  | programs that XLA calls by name                                      |
| members   | what a compiled kernel does for arrays of given shapes               |
| functions | a compiled kernel as a function of JAX                               |
"""

from tilewright.jax.functions import Function, function

__all__ = ["Function", "function"]
