"""Which module of a model takes what another gives, as far as torch.fx tells."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from tilewright.torch import nn

UNTRACEABLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that a model's own code may raise where it meets torch.fx's stand-ins for tensors."""


class _Proxy(torch.fx.Proxy):
    """torch.fx's stand-in for a tensor; `x += y` writes to x here too, where torch.fx takes it for `x = x + y`."""


def _written(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
IN_PLACE = tuple(f"__i{name}__" for name in _BINARY)
"""Python's operators that write to what stands on their left."""
for _name in IN_PLACE:
    setattr(_Proxy, _name, _written(_name))


class FlowTracer(torch.fx.Tracer):
    """Follows a model's code, but not that of modules of torch and of those that compute the same here."""

    def proxy(self, node: Any) -> Any:
        """The stand-in for what a node gives."""
        return _Proxy(node, self)

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        """True if a module is one node of the graph."""
        return type(m) in _OURS or super().is_leaf_module(m, module_qualified_name)


_OURS = frozenset(nn.SWAPS.values())


def has_hooks(module: Any) -> bool:
    """True if a module has hooks: functions that run beside its calls."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names)


def traced(module: Any) -> tuple[Any, str]:
    """(the graph of a module's code, ""), or (None, why torch.fx cannot follow it). The module stays as it was.

    Code that keeps what it computes in attributes is not followed: it would keep torch.fx's stand-ins for tensors.
    """
    attributes = [(m, dict(m.__dict__)) for m in module.modules()]
    try:
        graph, why = FlowTracer().trace(module), ""
    except UNTRACEABLE as fault:
        graph, why = None, f"{type(fault).__name__}: {(str(fault).splitlines() or [''])[0]}"
    for m, before in attributes:
        names = [*dict.fromkeys((*before, *m.__dict__))]
        changed = [n for n in names if before.get(n, m) is not m.__dict__.get(n, m)]
        if changed:
            m.__dict__.clear()
            m.__dict__.update(before)
            graph, why = None, why or f"its code writes to the attribute {changed[0]}"
    return graph, why


class Flow:
    """The modules of a model, by path: how often each is called, and the one module that takes its result.

    Where torch.fx cannot follow the model, as `why` says, it follows the model's parts, each by itself. A Sequential of
    code that cannot be followed is no such part: that code may call its children one by one.
    """

    def __init__(self, model: Any):
        self.why: str | None = None
        self._calls: Counter[str] = Counter()
        self._next: dict[str, str] = {}
        self._read: set[str] = set()
        self._places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
        self._modules = dict(model.named_modules())
        self._follow(model, "")

    def _follow(self, module: Any, path: str) -> None:
        graph, why = traced(module)
        if graph is not None:
            self._add(graph, path)
            return
        self.why = self.why or f"torch.fx cannot follow {path or 'the model'} ({why})"
        for name, child in _parts(module):
            self._follow(child, f"{path}.{name}".lstrip("."))

    def _add(self, graph: Any, path: str) -> None:
        def within(target: str) -> str:
            return f"{path}.{target}".lstrip(".")

        for node in graph.nodes:
            if node.op == "get_attr":
                self._read.add(within(node.target.rpartition(".")[0]))
            if node.op != "call_module":
                continue
            # A part knows its own calls: a module that stands in other places may be called there too.
            elsewhere = self._places[id(self._modules.get(within(node.target)))] - 1 if path else 0
            self._calls[within(node.target)] += 1 + max(elsewhere, 0)
            users = list(node.users)
            if len(users) == 1 and users[0].op == "call_module" and users[0].args == (node,) and not users[0].kwargs:
                self._next[within(node.target)] = within(users[0].target)

    def after(self, path: str) -> str | None:
        """The module that takes the result of another, and nothing else does; None where that is not so.

        Both are called once, and nothing reads their parameters beside them.
        """
        following = self._next.get(path)
        if following is None or following not in self._modules or self._calls[path] != 1 or self._calls[following] != 1:
            return None
        return None if {path, following} & self._read else following


def _parts(module: Any) -> Iterator[tuple[str, Any]]:
    """The children of a module, and in place of a list of modules those in it."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Sequential | torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from ((f"{name}.{inner}", part) for inner, part in _parts(child))
        elif next(child.children(), None) is not None:
            yield name, child
