"""Finds the only module of a model that takes another module's result, as far as torch.fx can follow the model."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from tilewright.torch import nn

UNTRACEABLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that a model's own code may raise when it is called with torch.fx's proxies of tensors."""


class _Proxy(torch.fx.Proxy):
    """torch.fx's proxy (stand-in for a tensor while it traces), for which `x += y` writes to x.

    torch.fx's own class treats it as `x = x + y`.
    """


def _in_place_method(name: str) -> Callable[[Any, Any], Any]:
    """Return a method (self, other) for torch.fx's proxies (stand-ins for tensors) that records an in-place operator.

    `name` is such as "__iadd__". A call of the method adds the node `operator.__iadd__(self, other)` to the graph and
    returns the node's proxy.
    """
    function = getattr(operator, name)
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
IN_PLACE = tuple(f"__i{name}__" for name in _BINARY)
"""Python's in-place operators, which write to their left operand."""
for _name in IN_PLACE:
    setattr(_Proxy, _name, _in_place_method(_name))


class FlowTracer(torch.fx.Tracer):
    """Traces a model's code; modules of torch, and their counterparts in `tilewright.torch.nn`, are single nodes."""

    def proxy(self, node: Any) -> Any:
        """Return a proxy (stand-in for a tensor) for the result of the graph node `node`. For this proxy, `x += y` is
        recorded as a write to x."""
        return _Proxy(node, self)

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        """True if the module `m` becomes one node of the graph, so that its code is not traced.

        Leaf modules are torch's modules, except Sequential, and those of `tilewright.torch.nn`.
        `module_qualified_name`, the path of `m`, is passed on to torch's rule.
        """
        return type(m) in _OURS or super().is_leaf_module(m, module_qualified_name)


_OURS = frozenset(nn.SWAPS.values())


def has_hooks(module: Any) -> bool:
    """True if `module` itself has hooks: functions that torch calls before or after its forward or backward. Hooks of
    its children do not count."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names)


def trace_module(module: Any) -> tuple[Any, str]:
    """Return (torch.fx graph of the code of `module`, ""), or (None, the reason) if torch.fx cannot follow that code.

    Code that writes to attributes of the module or of its submodules counts as code that cannot be followed. The
    attributes of all these modules are restored, since tracing may leave proxies of torch.fx in them.
    """
    attributes = [(m, dict(m.__dict__)) for m in module.modules()]
    try:
        graph, why = FlowTracer().trace(module), ""
    except UNTRACEABLE as fault:
        graph, why = None, f"{type(fault).__name__}: {(str(fault).splitlines() or [''])[0]}"
    for m, before in attributes:
        attribute_names = [*dict.fromkeys((*before, *m.__dict__))]
        changed = [n for n in attribute_names if before.get(n, m) is not m.__dict__.get(n, m)]
        if changed:
            m.__dict__.clear()
            m.__dict__.update(before)
            graph, why = None, why or f"its code writes to the attribute {changed[0]}"
    return graph, why


class Flow:
    """The calls of modules in a model, by the modules' paths: how often each is called, and which module alone takes
    its result.

    If torch.fx cannot follow the model's code (`why` has the reason), the code of each child module that has children
    is followed by itself. A Sequential, ModuleList or ModuleDict in code that cannot be followed is not followed
    itself, only its children, since that code may call these one by one.
    """

    def __init__(self, model: Any):
        """Follow the code of `model` and of its modules."""
        self.why: str | None = None
        self._calls: Counter[str] = Counter()
        self._next: dict[str, str] = {}
        self._read: set[str] = set()
        self._places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
        self._modules = dict(model.named_modules())
        self._follow(model, "")

    def _follow(self, module: Any, path: str) -> None:
        """Record the module calls that torch.fx finds in the code of `module`, whose path in the model is `path`.

        If torch.fx cannot follow that code, set `self.why` to the reason, unless it is set, and follow the code of each
        child module that has children itself.
        """
        graph, why = trace_module(module)
        if graph is not None:
            self._add(graph, path)
            return
        self.why = self.why or f"torch.fx cannot follow {path or 'the model'} ({why})"
        for name, child in _containers(module):
            self._follow(child, f"{path}.{name}".lstrip("."))

    def _add(self, graph: Any, path: str) -> None:
        """Record the calls of modules and the reads of parameters in `graph`, the torch.fx graph of the module at
        `path`.

        If a call's result is used only as the single argument of one other module call, that module is recorded as its
        consumer. In the graph of a submodule (`path` not ""), a module that the model has under k paths counts as
        called k times.
        """

        def path_of(target: str) -> str:
            """Return the path in the whole model of a module; `target` is its path relative to the graph's module."""
            return f"{path}.{target}".lstrip(".")

        for node in graph.nodes:
            if node.op == "get_attr":
                self._read.add(path_of(node.target.rpartition(".")[0]))
            if node.op != "call_module":
                continue
            # The graph of a submodule has its own calls only: a module that is shared may be called elsewhere too.
            other_places = self._places[id(self._modules.get(path_of(node.target)))] - 1 if path else 0
            self._calls[path_of(node.target)] += 1 + max(other_places, 0)
            users = list(node.users)
            if len(users) == 1 and users[0].op == "call_module" and users[0].args == (node,) and not users[0].kwargs:
                self._next[path_of(node.target)] = path_of(users[0].target)

    def only_consumer(self, path: str) -> str | None:
        """Return the path of the module that alone takes the result of the module at `path`; None if there is no such
        module.

        The result is None too if either module is not called exactly once, or if other code reads a parameter of
        either.
        """
        consumer = self._next.get(path)
        if consumer is None or consumer not in self._modules or self._calls[path] != 1 or self._calls[consumer] != 1:
            return None
        return None if {path, consumer} & self._read else consumer


def _containers(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path, child) for each child of `module` that has children itself; the path is relative to `module`.

    A child that is a Sequential, ModuleList or ModuleDict is not yielded. Its own children are treated by the same rule
    instead, with paths such as "layers.0".
    """
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Sequential | torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from ((f"{name}.{inner}", grandchild) for inner, grandchild in _containers(child))
        elif next(child.children(), None) is not None:
            yield name, child
