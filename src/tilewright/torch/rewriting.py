"""Epilogue fusion in the code of modules: additions and activations after a Linear or convolution become its options.

`out = self.conv(x); out += x; return self.relu(out)` becomes `return self.conv(x, residual=x, activation="relu")`. The
code is torch.fx's graph of a module's `forward`; the rewritten module is a GraphModule with the same submodules and
attributes.
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

_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
"""Functions, and names of methods, that add two tensors."""
_IN_PLACE_ADDITIONS = (operator.iadd, "add_")
"""The additions that write to their first tensor."""
_ACTIVATIONS: dict[Any, str] = {
    torch.relu: "relu",
    torch.relu_: "relu",
    torch.nn.functional.relu: "relu",
    torch.nn.functional.silu: "silu",
    torch.nn.functional.gelu: "gelu",
    "relu": "relu",
    "relu_": "relu",
}
"""{torch's function, or name of a tensor's method: the kernels' name of that activation}."""
_INSPECTING = {"isinstance", "issubclass", "type", "hasattr", "callable", "is_grad_enabled"}
"""Names of functions whose results depend on a call's values; torch.fx fixes them when it traces the code."""


def activation_of_module(module: Any) -> str | None:
    """Return the name that kernels have for an activation module of torch: "relu", "silu", "gelu" or "gelu_tanh".

    None for all other modules, including instances of subclasses of torch's activations.
    """
    if type(module) is torch.nn.GELU:
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    return {torch.nn.ReLU: "relu", torch.nn.SiLU: "silu"}.get(type(module))


@dataclass
class RewrittenModule:
    """A module with rewritten code, and what was fused in it."""

    module: Any
    """The new module, a torch.fx GraphModule."""
    fused: dict[str, str] = field(default_factory=dict)
    """{names of fused graph nodes, "add, relu": path of the submodule that computes them now}."""
    uncalled: set[str] = field(default_factory=set)
    """Paths of submodules that the code called, and calls no longer."""


def rewrite_module(module: Any) -> RewrittenModule | None:
    """Return `module` rewritten, with additions and activations fused into the calls of submodules before them.

    None if `module` is in training mode, if there is nothing to fuse, or if torch.fx cannot follow its code reliably.
    `module` is not changed; the new module has the same submodules and parameters.

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
    # A tensor that does not depend on the argument, such as a random one, is a constant in the graph.
    if graph is None or any(n.op == "get_attr" and "_tensor_constant" in n.target for n in graph.nodes):
        return None
    called = _called_modules(graph)
    fused = {}
    for node in reversed(list(graph.nodes)):
        chain = _find_chain(node, module)
        if chain is not None:
            fused[", ".join(each.name for each in chain.nodes)] = node.target
            chain.fuse(graph)
    if not fused:
        return None
    for node in graph.nodes:  # type annotations, perhaps as text, which pickle cannot resolve
        node.type = None
    graph.lint()
    graph_module = torch.fx.GraphModule(module, graph, class_name=type(module).__name__)
    for name, value in module.__dict__.items():
        if name in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            graph_module.__dict__[name] = value
        else:
            graph_module.__dict__.setdefault(name, value)
    return RewrittenModule(graph_module, dict(reversed(fused.items())), called - _called_modules(graph))


def _called_modules(graph: Any) -> set[str]:
    """Return the set of paths of the submodules that the torch.fx graph `graph` calls."""
    return {node.target for node in graph.nodes if node.op == "call_module"}


# -- code that torch.fx can follow --------------------------------------------------------------------------


def _is_followable(module: Any) -> bool:
    """True if the graph that torch.fx traces from the code of `module` should compute the same for every tensor
    argument.

    Three conditions must hold. The module has submodules, and its class is not torch's. Its `forward` takes exactly one
    positional argument, without a default. No module whose code is traced has hooks, or methods that test types or
    attributes of values.
    """
    if type(module).__module__.partition(".")[0] == "torch" or next(module.children(), None) is None:
        return False
    (*parameters,) = inspect.signature(module.forward).parameters.values()
    if len(parameters) != 1 or parameters[0].kind is not parameters[0].POSITIONAL_OR_KEYWORD:
        return False
    if parameters[0].default is not parameters[0].empty:  # the argument may be left out, and the code may test for that
        return False
    inner = [m for m in module.modules() if not FlowTracer().is_leaf_module(m, "")]
    return not any(has_hooks(m) or _inspects_values(type(m)) for m in inner)


def _inspects_values(kind: type) -> bool:
    """True if a method of the module class `kind` uses a name of `_INSPECTING`, such as `isinstance` or `hasattr`.

    torch.fx would fix the result of such a test when it traces. Inherited methods count too, but not `__init__`, and
    not methods that torch's own classes define.
    """
    for each in kind.__mro__[: kind.__mro__.index(torch.nn.Module)]:
        for name, function in vars(each).items():
            code = getattr(function, "__code__", None)
            if name != "__init__" and code is not None and _INSPECTING & {*code.co_names}:
                return not each.__module__.startswith("torch.")
    return False


# -- fusable chains ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chain:
    """Graph nodes to be fused: a call of a Linear or convolution, and the addition and activation of its result.

    No other node uses the values between them.
    """

    call: Any
    """The node that calls the Linear or convolution."""
    identities: tuple[Any, ...]
    """Calls of torch.nn.Identity on the result, before the addition and activation."""
    addition: Any | None
    """The node that adds the residual to the result, or None."""
    residual: Any | None
    """The node whose result is added, or None."""
    activation: Any | None
    """The node that applies an activation, or None."""
    name: str | None
    """The kernels' name of the activation, or None."""

    @property
    def nodes(self) -> tuple[Any, ...]:
        """Return the nodes that are fused into the call: (addition, activation), or the one of them that is not
        None."""
        return tuple(node for node in (self.addition, self.activation) if node is not None)

    def fuse(self, graph: Any) -> None:
        """Replace all nodes of the chain in `graph`, in place, by one call with the options residual and activation.

        The new call has the position of the chain's last node. An option that is None is left out.
        """
        last = self.nodes[-1]
        options = {"residual": self.residual, "activation": self.name}
        with graph.inserting_before(last):
            call = graph.call_module(
                self.call.target, self.call.args, {k: v for k, v in options.items() if v is not None}
            )
        last.replace_all_uses_with(call)
        for node in reversed((self.call, *self.identities, *self.nodes)):
            graph.erase_node(node)


def _find_chain(call: Any, root: Any) -> _Chain | None:
    """Return the chain that begins at the graph node `call`; None if there is none. `root` is the module with the
    graph's submodules.

    The chain is a call of a Linear or convolution, then calls of Identity, then an addition of another node to the
    result, then an activation. Addition or activation may be missing. Return None if `call` is no call of a Linear or
    convolution, if this module has an activation or hooks already, if nothing can be fused, or if a node in between may
    write to tensors.
    """
    if call.op != "call_module" or len(call.args) != 1 or call.kwargs:
        return None
    module = root.get_submodule(call.target)
    if not isinstance(module, nn.Activated) or module.activation is not None or has_hooks(module):
        return None
    last, identities = call, []
    while (following := _only_user(last)) is not None and _is_identity(following, root):
        last = following
        identities.append(last)
    addition = _only_user(last)
    residual = None if addition is None else _added_term(addition, last)
    if residual is None:
        addition = None
    else:
        last = addition
    activation = _only_user(last)
    name = None if activation is None else _activation_name(activation, last, root)
    chain = _Chain(call, tuple(identities), addition, residual, activation if name is not None else None, name)
    if not chain.nodes or any(_may_write(n, root) for n in _between(call, chain.nodes[-1]) if n not in chain.nodes):
        return None
    return chain


def _only_user(node: Any) -> Any | None:
    """Return the only graph node that uses the result of `node`; None if there is none, or more than one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_identity(node: Any, root: Any) -> bool:
    """True if the graph node `node` calls a torch.nn.Identity without hooks. `root` is the module with the graph's
    submodules."""
    if node.op != "call_module":
        return False
    module = root.get_submodule(node.target)
    return type(module) is torch.nn.Identity and not has_hooks(module)


def _added_term(node: Any, term: Any) -> Any | None:
    """Return the node y if the graph node `node` computes `term` + y or y + `term`; else None.

    None also if both terms are the same node, if the addition has options such as `alpha`, or if it is an in-place
    addition that does not write to `term`.
    """
    if node.op not in ("call_function", "call_method") or node.target not in _ADDITIONS or node.kwargs:
        return None
    if len(node.args) != 2 or not all(isinstance(a, torch.fx.Node) for a in node.args):
        return None
    first, second = node.args
    if first is second or (node.target in _IN_PLACE_ADDITIONS and term is not first):
        return None
    return second if term is first else first


def _activation_name(node: Any, x: Any, root: Any) -> str | None:
    """Return the name ("relu", "gelu_tanh", ...) of the activation that the graph node `node` applies to the node `x`.

    None if `node` does anything else, has options that kernels lack, or calls a module with hooks. `root` is the module
    with the graph's submodules.
    """
    if node.args[:1] != (x,):
        return None
    if node.op == "call_module":
        module = root.get_submodule(node.target)
        return None if has_hooks(module) or len(node.args) != 1 or node.kwargs else activation_of_module(module)
    if node.op not in ("call_function", "call_method") or len(node.args) != 1:
        return None
    name = _ACTIVATIONS.get(node.target)
    options = dict(node.kwargs)
    options.pop("inplace", None)
    if name == "gelu" and options.pop("approximate", "none") == "tanh":
        name = "gelu_tanh"
    return None if options else name


def _between(first: Any, last: Any) -> Iterator[Any]:
    """Yield the graph nodes after `first` and before `last`, in the order of execution. `last` must come after
    `first`."""
    node = first.next
    while node is not last:
        yield node
        node = node.next


def _may_write(node: Any, root: Any) -> bool:
    """True if the graph node `node` may write to a tensor that another node computed.

    These calls may write: in-place modules and modules with hooks; methods and functions with names such as `add_`;
    Python's in-place operators, `setitem` and `delitem`; functions with `out=` or `inplace=True`; and all functions
    that are neither torch's nor Python's. `root` is the module with the graph's submodules.
    """
    if node.op == "call_module":
        module = root.get_submodule(node.target)
        return bool(getattr(module, "inplace", False)) or has_hooks(module)
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op != "call_function":
        return False
    origin, name = getattr(node.target, "__module__", None) or "", getattr(node.target, "__name__", "")
    if origin in ("_operator", "operator"):
        return name in ("setitem", "delitem") or f"__{name}__" in IN_PLACE
    is_known = origin.partition(".")[0] in ("torch", "builtins", "math") or not origin
    return not is_known or name.endswith("_") or "out" in node.kwargs or bool(node.kwargs.get("inplace"))
