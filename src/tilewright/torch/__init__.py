"""Tilewright's kernels in PyTorch: operators, functions and modules. It needs torch (extra `torch`).

>>> import torch, tilewright.torch
>>> layer = tilewright.torch.nn.Linear(4, 2)
>>> layer.load_state_dict(torch.nn.Linear(4, 2).state_dict())
<All keys matched successfully>
>>> compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
>>> compiled(torch.ones(3, 4)).shape
torch.Size([3, 2])

Every operator is `torch.ops.tilewright.NAME`, with a fake kernel, rules of autograd, autocast and vmap: torch.compile,
torch.export, make_fx and torch.jit.trace keep it as one node.

| file         | subject                                                                         |
|--------------|---------------------------------------------------------------------------------|
| library      | what makes a function an operator: fake, autograd, autocast, vmap               |
| learning     | calls of operators that are learnt, and tensors as their kernels get them        |
| batching     | rules of vmap: batches first, or a loop with a warning                          |
| checks       | what operators ask of their tensors, and the words in which they refuse         |
| packed       | weights that are packed once for each version                                   |
| activations  | activations as torch computes them, and their gradients                         |
| products     | linear, matmul, bmm, with their gradients                                       |
| convolutions | conv1d, conv2d, conv3d, with the gradients of images and filters                |
| rows         | layer_norm, rms_norm, group_norm, softmax                                       |
| attention    | attention over heads and batches                                                |
| weighting    | attention that holds all its weights: dropout, and weights that are asked for   |
| signatures   | a compiled kernel's schema, and shapes that follow from shapes                  |
| operators    | `operator`: any kernel as an operator, with a backward that the author names    |
| functional   | functions with the signatures of torch.nn.functional                            |
| multihead    | the module MultiheadAttention                                                   |
| nn           | modules with the parameters and state_dict of torch.nn                          |
| flow         | which module takes what another gives                                           |
| rewriting    | code of modules whose sums and activations go into the kernel before them       |
| replacing    | `replace`: modules of a model swapped, batch norms folded, activations fused    |
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

from tilewright.torch import attention, convolutions, functional, nn, products, rows
from tilewright.torch.operators import operator
from tilewright.torch.replacing import Report, replace

__all__ = ["Report", "functional", "nn", "operator", "replace"]
