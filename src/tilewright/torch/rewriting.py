"""Code of modules, rewritten: what is added to a result, and what is applied to it, is done by the module before.

`out = self.conv(x); out += x; return self.relu(out)` becomes `return self.conv(x, residual=x, activation="relu")`. The
code is torch.fx's graph of a module's `forward`; the module becomes a GraphModule with the same parts and attributes.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from tilewright.torch import nn
from tilewright.torch.flow import IN_PLACE, FlowTracer, has_hooks, trace_module

_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
"""Functions, and names of methods, that add two tensors."""
_SUMS_IN_PLACE = (operator.iadd, "add_")
"""Those of them that write to the first one."""
_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu",
    torch.relu_: "relu",
    torch.nn.functional.relu: "relu",
    torch.nn.functional.silu: "silu",
    torch.nn.functional.gelu: "gelu",
    "relu": "relu",
    "relu_": "relu",
}
"""Activations of torch that are functions, or methods of tensors, and the kernels' names of them."""
_ASKING = {"isinstance", "issubclass", "type", "hasattr", "callable", "is_grad_enabled"}
"""Names in a module's code whose answers torch.fx would take for those of every call."""


def activation_of_module(module: Any) -> str | None:
    """The kernels' name of an activation that is a module of torch's; None: it is none of them."""
    if type(module) is torch.nn.GELU:
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    return {torch.nn.ReLU: "relu", torch.nn.SiLU: "silu"}.get(type(module))


@dataclass
class Rewritten:
    """A module whose code was rewritten."""

    module: Any
    fused: dict[str, str] = field(default_factory=dict)
    """What was fused, by the names that it has in the code, and the path of the module that does it now."""
    uncalled: set[str] = field(default_factory=set)
    """Paths of modules that the code called, and calls no longer."""


def rewrite_module(module: Any) -> Rewritten | None:
    """The module with its code rewritten; None where nothing is to be fused, or torch.fx may not see all that it does.

    >>> class Block(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         return torch.relu(x + self.layer(x))
    >>> block = rewrite_module(Block().eval())
    >>> block.fused
    {'add, relu': 'layer'}
    >>> print(block.module.code.strip())
    def forward(self, x):
        layer_1 = self.layer(x, residual = x, activation = 'relu');  x = None
        return layer_1
    """
    if module.training or not _is_followable(module):
        return None
    graph, _ = trace_module(module)
    # A tensor that no argument goes into, as a random one, was made once and stands in the graph.
    if graph is None or any(n.op == "get_attr" and "_tensor_constant" in n.target for n in graph.nodes):
        return None
    called = _called(graph)
    fused = {}
    for node in reversed(list(graph.nodes)):
        chain = _chain(graph, node, module)
        if chain is not None:
            fused[", ".join(each.name for each in chain.nodes)] = node.target
            chain.fuse(graph)
    if not fused:
        return None
    for node in graph.nodes:  # annotations of the code, perhaps as texts, which no pickle finds again
        node.type = None
    graph.lint()
    of_graph = torch.fx.GraphModule(module, graph, class_name=type(module).__name__)
    for name, value in module.__dict__.items():
        if name in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            of_graph.__dict__[name] = value
        else:
            of_graph.__dict__.setdefault(name, value)
    return Rewritten(of_graph, dict(reversed(fused.items())), called - _called(graph))


def _called(graph: Any) -> set[str]:
    return {node.target for node in graph.nodes if node.op == "call_module"}


# -- what torch.fx may follow -----------------------------------------------------------------------------


def _is_followable(module: Any) -> bool:
    """True if a graph of the module's code means what the code means, for every argument that is a tensor."""
    if type(module).__module__.partition(".")[0] == "torch" or next(module.children(), None) is None:
        return False
    (*parameters,) = inspect.signature(module.forward).parameters.values()
    if len(parameters) != 1 or parameters[0].kind is not parameters[0].POSITIONAL_OR_KEYWORD:
        return False
    if parameters[0].default is not parameters[0].empty:  # it may be None, which the code may ask for
        return False
    inner = [m for m in module.modules() if not FlowTracer().is_leaf_module(m, "")]
    return not any(has_hooks(m) or _asks(type(m)) for m in inner)


def _asks(kind: type) -> bool:
    """True if the code of a class, other than what makes its modules, asks for types of values."""
    for each in kind.__mro__[: kind.__mro__.index(torch.nn.Module)]:
        for name, function in vars(each).items():
            code = getattr(function, "__code__", None)
            if name != "__init__" and code is not None and _ASKING & {*code.co_names}:
                return not each.__module__.startswith("torch.")
    return False


# -- what may be fused ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chain:
    """A call of a module that multiplies, and what is done with its result before another sees it."""

    call: Any
    passed: tuple[Any, ...]
    """Calls of Identity between them."""
    sum: Any | None
    residual: Any | None
    activation: Any | None
    name: str | None
    """The kernels' name of the activation."""

    @property
    def nodes(self) -> tuple[Any, ...]:
        """Return the nodes that are fused: the sum and the activation, those that there are."""
        return tuple(node for node in (self.sum, self.activation) if node is not None)

    def fuse(self, graph: Any) -> None:
        """Replace the module's call and the fused nodes by one call, where the last of them stands."""
        last = self.nodes[-1]
        options = {"residual": self.residual, "activation": self.name}
        with graph.inserting_before(last):
            call = graph.call_module(
                self.call.target, self.call.args, {k: v for k, v in options.items() if v is not None}
            )
        last.replace_all_uses_with(call)
        for node in reversed((self.call, *self.passed, *self.nodes)):
            graph.erase_node(node)


def _chain(graph: Any, call: Any, root: Any) -> _Chain | None:
    """Return the sum and activation that follow a call of a module and may be fused with it; None if there are none."""
    if call.op != "call_module" or len(call.args) != 1 or call.kwargs:
        return None
    module = root.get_submodule(call.target)
    if not isinstance(module, nn.Activated) or module.activation is not None or has_hooks(module):
        return None
    last, passed = call, []
    while (following := _only_user(last)) is not None and _is_identity(following, root):
        last = following
        passed.append(last)
    total = _only_user(last)
    residual = None if total is None else _residual(total, last)
    if residual is None:
        total = None
    else:
        last = total
    activation = _only_user(last)
    name = None if activation is None else _activation_name(activation, last, root)
    chain = _Chain(call, tuple(passed), total, residual, activation if name is not None else None, name)
    if not chain.nodes or any(_may_write(n, root) for n in _between(call, chain.nodes[-1]) if n not in chain.nodes):
        return None
    return chain


def _only_user(node: Any) -> Any | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_identity(node: Any, root: Any) -> bool:
    if node.op != "call_module":
        return False
    module = root.get_submodule(node.target)
    return type(module) is torch.nn.Identity and not has_hooks(module)


def _residual(node: Any, term: Any) -> Any | None:
    """Return the other term if `node` is a sum of `term` and one other; else None."""
    if node.op not in ("call_function", "call_method") or node.target not in _SUMS or node.kwargs:
        return None
    if len(node.args) != 2 or not all(isinstance(a, torch.fx.Node) for a in node.args):
        return None
    first, second = node.args
    if first is second or (node.target in _SUMS_IN_PLACE and term is not first):
        return None
    return second if term is first else first


def _activation_name(node: Any, x: Any, root: Any) -> str | None:
    """The kernels' name of the activation that a node applies to x; None where it does something else."""
    if node.args[:1] != (x,):
        return None
    if node.op == "call_module":
        module = root.get_submodule(node.target)
        return None if has_hooks(module) or len(node.args) != 1 or node.kwargs else activation_of_module(module)
    if node.op not in ("call_function", "call_method") or len(node.args) != 1:
        return None
    name = _FUNCTIONS.get(node.target)
    options = dict(node.kwargs)
    options.pop("inplace", None)
    if name == "gelu" and options.pop("approximate", "none") == "tanh":
        name = "gelu_tanh"
    return None if options else name


def _between(first: Any, last: Any) -> Iterator[Any]:
    """The nodes after one and before another."""
    node = first.next
    while node is not last:
        yield node
        node = node.next


def _may_write(node: Any, root: Any) -> bool:
    """True if a node may write to a tensor that was made before; what is not torch's own might do anything."""
    if node.op == "call_module":
        module = root.get_submodule(node.target)
        return bool(getattr(module, "inplace", False)) or has_hooks(module)
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op != "call_function":
        return False
    place, name = getattr(node.target, "__module__", None) or "", getattr(node.target, "__name__", "")
    if place in ("_operator", "operator"):
        return name in ("setitem", "delitem") or f"__{name}__" in IN_PLACE
    known = place.partition(".")[0] in ("torch", "builtins", "math") or not place
    return not known or name.endswith("_") or "out" in node.kwargs or bool(node.kwargs.get("inplace"))
