"""`replace(model)`: swaps torch's modules for those of `tilewright.torch.nn`, with epilogue fusion and a report."""

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
from tilewright.torch.pooling import why_no_average_pool, why_no_max_pool
from tilewright.torch.rewriting import activation_of_module, rewrite_module

_NORMS: dict[Any, Any] = {
    torch.nn.Conv1d: torch.nn.BatchNorm1d,
    torch.nn.Conv2d: torch.nn.BatchNorm2d,
    torch.nn.Conv3d: torch.nn.BatchNorm3d,
}
"""{class of a convolution: class of a batch norm that can be folded into its weights}. Linear is left out, because a
batch norm after it may normalise another dimension."""
_BYPASSING = (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
"""Modules of torch that may compute with the weights of their submodules without calling these."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes of parameters that operators take."""


@dataclass
class Report:
    """The result of `replace`: the new model, and for each module, by its path in the model, what was done with it."""

    model: Any
    """The model with its modules swapped."""
    swapped: dict[str, str] = field(default_factory=dict)
    """{path of a module that Tilewright computes now: its class and options}."""
    folded: dict[str, str] = field(default_factory=dict)
    """{path of a batch norm: path of the convolution into whose weights it was folded}."""
    fused: dict[str, str] = field(default_factory=dict)
    """{activation or addition: path of the module that computes it now}; the key is the path of a module, or the path
    of the module whose code has it and names of graph nodes."""
    kept: dict[str, str] = field(default_factory=dict)
    """{path of a module that torch computes as before: why}."""

    def __str__(self) -> str:
        """Return the numbers of modules of each kind, then a line for each module."""
        counts = (
            f"{len(self.swapped)} swapped, {len(self.folded)} folded, {len(self.fused)} fused, {len(self.kept)} kept"
        )
        lines = [f"swapped {path or 'the model'}: {what}" for path, what in self.swapped.items()]
        lines += [f"folded {path} into {where}" for path, where in self.folded.items()]
        lines += [f"fused {path} into {where}" for path, where in self.fused.items()]
        lines += [f"kept {path or 'the model'}: {why}" for path, why in self.kept.items()]
        return "\n".join([counts, *lines])


def replace(model: Any, *, inplace: bool = False) -> Report:
    """Swap the modules of `model` for those of `tilewright.torch.nn`; return a `Report` with the new model.

    The new model is a copy that shares no memory with the given one, unless `inplace`. If a module's result is used
    only by the module after it, as far as torch.fx can follow the model, a batch norm in eval mode is folded into the
    weights before it, and an activation is fused into the module before it. In eval mode, the code of modules whose
    `forward` takes one tensor is rewritten too: an addition or activation of a submodule's result is fused into that
    submodule. Tests of the module's attributes in such code are fixed to their results when `replace` was called.
    Modules without a backward are swapped in eval mode only. Weights keep their memory format, channels last or not.

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
    use_counts = Counter(id(p) for _, p in report.model.named_parameters(remove_duplicate=False))
    modules = dict(report.model.named_modules())
    why_not_swapped = {
        path: _why_unsupported(module) or _why_bypassed(path, modules)
        for path, module in modules.items()
        if type(module) in nn.SWAPS
    }
    for path in [path for path, why in why_not_swapped.items() if why is None]:
        module = modules[path]
        is_tied = any(use_counts[id(p)] > 1 for p in module.parameters(recurse=False))
        following = flow.only_consumer(path)
        if following is not None and not is_tied and _is_foldable(module, modules[following]):
            _fold_norm(module, modules[following])
            report.folded[following] = path
            following = flow.only_consumer(following)
        activation = None if following is None else _fusable_activation(module, modules[following])
        if activation is not None and following is not None:
            report.fused[following] = path
        replacement = _counterpart(module, activation)
        _set_module(report, path, replacement)
        report.swapped[path] = f"{type(replacement).__name__}({replacement.extra_repr()})"
    for path in (*report.folded, *report.fused):
        _set_module(report, path, torch.nn.Identity())
    handled = {*report.swapped, *report.folded, *report.fused, *_rewrite_code(report)}
    for path, module in modules.items():
        is_whole = next(module.children(), None) is None or next(module.parameters(recurse=False), None) is not None
        if path in handled or not is_whole or path.rpartition(".")[0] in report.swapped:  # a child of a swapped module
            continue
        report.kept[path] = why_not_swapped.get(path) or _why_no_operator(module, flow)
    return report


def _rewrite_code(report: Report) -> set[str]:
    """Fuse additions and activations in the code of the modules of the report's model, the most deeply nested modules
    first.

    Rewritten modules replace the old ones in `report.model`, and the fused operations are added to `report.fused`.
    Return the set of paths of submodules that are called no longer.
    """
    uncalled: set[str] = set()
    for path in sorted(dict(report.model.named_modules()), key=lambda path: -len(path.split(".")) if path else 0):
        block = rewrite_module(report.model.get_submodule(path))
        if block is None:
            continue
        _set_module(report, path, block.module)
        prefix = f"{path}." if path else ""
        report.fused |= {f"{prefix}{names}": f"{prefix}{where}" for names, where in block.fused.items()}
        uncalled |= {f"{prefix}{inner}" for inner in block.uncalled}
    return uncalled


# -- reasons ----------------------------------------------------------------------------------------------


def _why_unsupported(module: Any) -> str | None:
    """Return the reason why `module` cannot be swapped; None if it can. The class of `module` must be in `nn.SWAPS`.

    Reasons are training mode if the replacement has no backward, an option that the replacement lacks, and a
    parameter's dtype or device.
    """
    replacement = nn.SWAPS[type(module)]
    if replacement in nn.WITHOUT_BACKWARD and module.training:
        return f"{replacement.__name__} has no backward, and the module is in training mode: call model.eval() first"
    why = _why_unsupported_options(module, replacement)
    if why is not None:
        return why
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dtype not in _FLOATS:
            return f"{name} holds {parameter.dtype}; operators take f16, bf16, f32 and f64"
        if parameter.device.type not in ("cpu", "cuda", "meta"):
            return f"{name} lies on the device {parameter.device}; operators run on cpu and cuda"
    return None


def _why_unsupported_options(module: Any, replacement: type) -> str | None:
    """Return the reason why the class `replacement` of `tilewright.torch.nn` lacks an option of `module`; None if it
    lacks none.

    Reasons are a softmax with `dim` None, and options of poolings.
    """
    if issubclass(replacement, nn.Softmax) and module.dim is None:
        return "its dim is None: say which dimension"
    if issubclass(replacement, nn.MaxPool):
        return why_no_max_pool(module.ceil_mode, module.return_indices)
    return why_no_average_pool(module.output_size) if issubclass(replacement, nn.AdaptiveAvgPool) else None


def _why_bypassed(path: str, modules: dict[str, Any]) -> str | None:
    """Return the reason why the module at `path` might not be called after a swap; None if it would be called.

    The reason is a parent of a class in `_BYPASSING`, such as TransformerEncoderLayer, which may compute with its
    children's weights itself. `modules` is {path: module}.
    """
    parent = modules.get(path.rpartition(".")[0]) if path else None
    if not isinstance(parent, _BYPASSING):
        return None
    return f"{type(parent).__name__}, which it is part of, takes its weights itself in eval mode and does not call it"


def _why_no_operator(module: Any, flow: Flow) -> str:
    """Return the reason, for the report, why torch still computes `module`, which was neither swapped, folded nor
    fused.

    The class of `module` is not in `nn.SWAPS`. For activations, and for batch norms in eval mode, the reason is
    `flow.why` if torch.fx could not follow the model.
    """
    for torch_class in nn.SWAPS:
        if isinstance(module, torch_class):
            return f"{type(module).__name__} is a class of its own; torch.nn.{torch_class.__name__} itself is swapped"
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
    """True if `norm` is a batch norm that can be folded into the weights of the convolution `module`, whose result it
    takes.

    `norm` must be in eval mode with running statistics, so that it only scales and shifts each channel by constants.
    Its class and number of channels must fit `module`, and neither module may have hooks. False if `module` is no
    convolution.
    """
    norm_class = _NORMS.get(type(module))
    if norm_class is None or type(norm) is not norm_class or has_hooks(norm) or has_hooks(module):
        return False
    fits: bool = norm.num_features == module.out_channels
    return fits and not norm.training and norm.running_mean is not None


def _fold_norm(module: Any, norm: Any) -> None:
    """Set weight and bias of the convolution `module`, so that it computes what `norm` computed from its result before.

    `norm` is a batch norm in eval mode; the caller must remove it from the model. A convolution without a bias gets
    one. The new values are computed in float64 and rounded to the weight's dtype.
    """
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


def _fusable_activation(module: Any, following: Any) -> str | None:
    """Return the name ("relu", ...) of the activation `following` if it can be fused into `module`, whose result it
    takes.

    None if `module` is no Linear or convolution, if `following` is no activation that kernels have, or if either module
    has hooks. Raise KeyError if the class of `module` is not in `nn.SWAPS`.
    """
    if not issubclass(nn.SWAPS[type(module)], nn.Activated) or has_hooks(module) or has_hooks(following):
        return None
    return activation_of_module(following)


# -- swaps of modules -------------------------------------------------------------------------------------


def _counterpart(module: Any, activation: str | None) -> Any:
    """Return a module of `tilewright.torch.nn` with the parameters, buffers, hooks and mode of torch's `module`.

    Parameters and buffers are shared, not copied. `activation` is the name of an activation to apply to the result;
    None adds none. Raise KeyError if the class of `module` is not in `nn.SWAPS`.
    """
    replacement = copy.copy(module)
    replacement.__class__ = nn.SWAPS[type(module)]
    replacement._parameters = dict(module._parameters)
    if activation is not None:
        replacement.activation = activation
    return replacement


def _set_module(report: Report, path: str, module: Any) -> None:
    """Replace the module at `path` of `report.model` by `module`, in place, under all paths at which the model has it.

    For the path "", which is the model itself, set `report.model` to `module`.
    """
    if not path:
        report.model = module
        return
    old = report.model.get_submodule(path)
    for parent in list(report.model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = module
