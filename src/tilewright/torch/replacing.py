"""`replace(model)`: modules of torch swapped for those of `tilewright.torch.nn`, with a report."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.errors import ArgumentError
from tilewright.limits import written
from tilewright.torch import nn
from tilewright.torch.flow import Flow, has_hooks
from tilewright.torch.rewriting import activation_of_module, rewrite_module

_NORMS: dict[Any, Any] = {
    torch.nn.Conv1d: torch.nn.BatchNorm1d,
    torch.nn.Conv2d: torch.nn.BatchNorm2d,
    torch.nn.Conv3d: torch.nn.BatchNorm3d,
}
"""Modules, and the batch norms that may be folded into them. After a Linear one may normalise another dimension."""
_FUSED = (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
"""Modules of torch that have a path of their own past their parts."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass
class Report:
    """What `replace` did: modules by their paths in the model."""

    model: Any
    """The model with its modules swapped."""
    swapped: dict[str, str] = field(default_factory=dict)
    """Modules that Tilewright computes now, and their class."""
    folded: dict[str, str] = field(default_factory=dict)
    """Batch norms that went into the weights of another module, and that module."""
    fused: dict[str, str] = field(default_factory=dict)
    """Activations and sums that another module does, and that module: modules, or names in the code of modules."""
    kept: dict[str, str] = field(default_factory=dict)
    """Modules that torch computes as before, and why."""

    def __str__(self) -> str:
        counts = (
            f"{len(self.swapped)} swapped, {len(self.folded)} folded, {len(self.fused)} fused, {len(self.kept)} kept"
        )
        lines = [f"swapped {path or 'the model'}: {what}" for path, what in self.swapped.items()]
        lines += [f"folded {path} into {where}" for path, where in self.folded.items()]
        lines += [f"fused {path} into {where}" for path, where in self.fused.items()]
        lines += [f"kept {path or 'the model'}: {why}" for path, why in self.kept.items()]
        return "\n".join([counts, *lines])


def replace(model: Any, *, inplace: bool = False) -> Report:
    """Swaps the modules of a model for those of `tilewright.torch.nn`, and reports what was done, and what not and why.

    The model in the report shares no memory with the given one, unless `inplace`. If modules are called one after the
    other and nothing else sees the value between them, as torch.fx tells, a batch norm in eval mode is folded into the
    weights before it, and an activation is applied by the module before it. In eval mode the code of modules whose
    `forward` takes one tensor is rewritten where the result of a module is added to another tensor, or an activation is
    applied to it: that module does it. Questions that such code asks of the module are answered as they were when
    `replace` was called. Modules without a backward are swapped in eval mode only. Weights lie in memory as before,
    channels last or not.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    >>> print(replace(model.eval()))
    1 swapped, 1 folded, 1 fused, 1 kept
    swapped 0: Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), activation='relu')
    folded 1 into 0
    fused 2 into 0
    kept 3: there is no operator for Flatten
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model={written(model, 80)}: a torch.nn.Module")
    report = Report(model if inplace else copy.deepcopy(model))
    flow = Flow(report.model)
    uses = Counter(id(p) for _, p in report.model.named_parameters(remove_duplicate=False))
    modules = dict(report.model.named_modules())
    swaps = {
        path: _why_kept(module) or _why_bypassed(path, modules)
        for path, module in modules.items()
        if type(module) in nn.SWAPS
    }
    for path in [path for path, why in swaps.items() if why is None]:
        module = modules[path]
        tied = any(uses[id(p)] > 1 for p in module.parameters(recurse=False))
        following = flow.only_consumer(path)
        if following is not None and not tied and _is_foldable(module, modules[following]):
            _fold(module, modules[following])
            report.folded[following] = path
            following = flow.only_consumer(following)
        activation = None if following is None else _activation(module, modules[following])
        if activation is not None and following is not None:
            report.fused[following] = path
        ours = _swapped(module, activation)
        _put(report, path, ours)
        report.swapped[path] = f"{type(ours).__name__}({ours.extra_repr()})"
    for path in (*report.folded, *report.fused):
        _put(report, path, torch.nn.Identity())
    gone = {*report.swapped, *report.folded, *report.fused, *_rewrite(report)}
    for path, module in modules.items():
        is_whole = next(module.children(), None) is None or next(module.parameters(recurse=False), None) is not None
        if path in gone or not is_whole or path.rpartition(".")[0] in report.swapped:  # a part of a swapped module
            continue
        report.kept[path] = swaps.get(path) or _why_no_operator(module, flow)
    return report


def _rewrite(report: Report) -> set[str]:
    """Rewrites the code of modules, inner ones first, and gives the paths of modules that are called no longer."""
    uncalled: set[str] = set()
    for path in sorted(dict(report.model.named_modules()), key=lambda path: -len(path.split(".")) if path else 0):
        block = rewrite_module(report.model.get_submodule(path))
        if block is None:
            continue
        _put(report, path, block.module)
        prefix = f"{path}." if path else ""
        report.fused |= {f"{prefix}{names}": f"{prefix}{where}" for names, where in block.fused.items()}
        uncalled |= {f"{prefix}{inner}" for inner in block.uncalled}
    return uncalled


# -- why not ----------------------------------------------------------------------------------------------


def _why_kept(module: Any) -> str | None:
    """Why a module for which there is an operator is not swapped; None: it is."""
    ours = nn.SWAPS[type(module)]
    if ours in nn.WITHOUT_BACKWARD and module.training:
        return f"{ours.__name__} has no backward, and the module is in training mode: call model.eval() first"
    if type(module) is torch.nn.Softmax and module.dim is None:
        return "its dim is None: say which dimension"
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dtype not in _FLOATS:
            return f"{name} holds {parameter.dtype}; operators take f16, bf16, f32 and f64"
        if parameter.device.type not in ("cpu", "cuda", "meta"):
            return f"{name} lies on the device {parameter.device}; operators run on cpu and cuda"
    return None


def _why_bypassed(path: str, modules: dict[str, Any]) -> str | None:
    """Why a swapped module might not be called: the module around it may compute with its weights itself."""
    around = modules.get(path.rpartition(".")[0]) if path else None
    if not isinstance(around, _FUSED):
        return None
    return f"{type(around).__name__}, which it is part of, takes its weights itself in eval mode and does not call it"


def _why_no_operator(module: Any, flow: Flow) -> str:
    for theirs in nn.SWAPS:
        if isinstance(module, theirs):
            return f"{type(module).__name__} is a class of its own; torch.nn.{theirs.__name__} itself is swapped"
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        if module.training:
            return "a batch norm is folded in eval mode only: call model.eval() first"
        return flow.why or "it does not follow a convolution or Linear alone, once, and with nothing between"
    if activation_of_module(module) is not None:
        return flow.why or "it does not follow a convolution or Linear alone, once, and with nothing between"
    if next(module.children(), None) is not None:
        return "modules in it are swapped by themselves; it computes with parameters of its own"
    return f"there is no operator for {type(module).__name__}"


# -- batch norms and activations --------------------------------------------------------------------------


def _is_foldable(module: Any, norm: Any) -> bool:
    """Whether a batch norm does nothing but scale and shift what the module gives, by numbers that do not change."""
    wanted = _NORMS.get(type(module))
    if wanted is None or type(norm) is not wanted or has_hooks(norm) or has_hooks(module):
        return False
    fits: bool = norm.num_features == module.out_channels
    return fits and not norm.training and norm.running_mean is not None


def _fold(module: Any, norm: Any) -> None:
    """Weights and bias of a module such that it gives what the batch norm made of its results."""
    with torch.no_grad():
        scale = torch.rsqrt(norm.running_var.double() + norm.eps)
        if norm.weight is not None:
            scale = scale * norm.weight.double()
        shift = (
            -norm.running_mean.double() if module.bias is None else module.bias.double() - norm.running_mean.double()
        )
        shift = shift * scale if norm.bias is None else shift * scale + norm.bias.double()
        shape = (-1, *(1,) * (module.weight.dim() - 1))
        weight = (module.weight.double() * scale.view(shape)).to(module.weight.dtype)
        needed = module.weight.requires_grad
        module.weight = torch.nn.Parameter(weight, requires_grad=needed)
        module.bias = torch.nn.Parameter(shift.to(weight.dtype), requires_grad=needed)


def _activation(module: Any, following: Any) -> str | None:
    """The activation that a module may apply in place of the one that follows it."""
    if not issubclass(nn.SWAPS[type(module)], nn.Activated) or has_hooks(module) or has_hooks(following):
        return None
    return activation_of_module(following)


# -- modules in their places ------------------------------------------------------------------------------


def _swapped(module: Any, activation: str | None) -> Any:
    """The module that computes the same, with the same parameters, buffers, hooks and mode."""
    ours = copy.copy(module)
    ours.__class__ = nn.SWAPS[type(module)]
    ours._parameters = dict(module._parameters)
    if activation is not None:
        ours.activation = activation
    return ours


def _put(report: Report, path: str, module: Any) -> None:
    """Puts a module in all places where the one with this path is."""
    if not path:
        report.model = module
        return
    old = report.model.get_submodule(path)
    for parent in list(report.model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = module
