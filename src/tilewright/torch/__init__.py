"""Tilewright's kernels in PyTorch: operators, functions and modules. It needs torch (extra `torch`).

>>> import torch, tilewright.torch
>>> layer = tilewright.torch.nn.Linear(4, 2)
>>> layer.load_state_dict(torch.nn.Linear(4, 2).state_dict())
<All keys matched successfully>
>>> compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
>>> compiled(torch.ones(3, 4)).shape
torch.Size([3, 2])

Every operator is `torch.ops.tilewright.NAME`, with a fake kernel and rules for autograd, autocast and vmap:
torch.compile, torch.export, make_fx and torch.jit.trace keep it as one node.

| file                | subject                                                                         |
|---------------------|---------------------------------------------------------------------------------|
| library             | registers operators with torch: fake kernels, autograd, autocast, vmap          |
| learning            | remembers the launch of a call, so that later calls like it repeat it           |
| batching            | vmap rules: the batch as first dimension, or a loop with a warning              |
| checks              | checks of operators' tensors, and the errors they raise                         |
| packed              | packed weights, kept until torch counts a write to them                         |
| activations         | activations as torch computes them, and their gradients                         |
| products            | linear, matmul, bmm, with their gradients                                       |
| convolutions        | conv1d, conv2d, conv3d, with the gradients with respect to images and filters   |
| rows                | layer_norm, rms_norm, group_norm, softmax                                       |
| row_gradients       | the gradients of layer_norm, rms_norm, group_norm and softmax                   |
| pooling             | max_pool1d to max_pool3d, adaptive_avg_pool1d to adaptive_avg_pool3d            |
| attention           | attention over heads and batches                                                |
| attention_gradients | the gradients of attention                                                      |
| weighting           | attention with its weight matrix in memory: for dropout, or to return it        |
| signatures          | a compiled kernel's schema, and its output shapes from its input shapes         |
| operators           | `operator`: any kernel as an operator, with a backward from its author          |
| functional          | functions with the signatures of torch.nn.functional                            |
| multihead           | the module MultiheadAttention                                                   |
| nn                  | modules with the parameters and state_dict of torch.nn                          |
| flow                | finds the only module that takes another module's result                        |
| rewriting           | fuses additions and activations in a module's code into the call before them    |
| replacing           | `replace`: swaps a model's modules, folds batch norms, fuses activations        |
"""

from tilewright.errors import MissingPackage

try:
    import torch as _torch
except ModuleNotFoundError as fault:
    if fault.name != "torch":
        raise
    raise MissingPackage(
        "tilewright.torch needs torch, which is not installed: pip install 'tilewright[torch]'"
    ) from None

from tilewright.torch import (
    attention,
    attention_gradients,
    convolutions,
    functional,
    nn,
    pooling,
    products,
    row_gradients,
    rows,
)
from tilewright.torch.operators import operator
from tilewright.torch.replacing import Report, replace

__all__ = ["Report", "functional", "nn", "operator", "replace"]
