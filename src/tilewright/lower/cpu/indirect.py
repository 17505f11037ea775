"""Gather, scatter and atomic on CPUs: coordinates that are data, one element at a time."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_rules import all_of
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import TensorAddress
from tilewright.ir.core import Op, Value
from tilewright.lower.cpu.elementwise import from_memory, in_memory, load, store
from tilewright.lower.loop_lowering import LoopLowering


def _for_each_element(low: LoopLowering, op: Op, body: Callable[[tuple[Expr, ...], TensorAddress], None]) -> None:
    """Emit loops over the elements of `op`, a gather, scatter or atomic. The loops read the index tensors (operands 2
    and later).

    `body(coordinates, address)` is called once and emits the work for one element. `coordinates` are the element's
    coordinates in the register tensor (operand 0). `address` is the element of the memory (operand 1) that the index
    tensors select, with its bounds conditions.
    """
    memory = in_memory(low, low.handles[op.operands[1]])
    indices = [in_memory(low, low.handles[v]) for v in op.operands[2:]]
    over = op.attrs["over"]
    shape = tuple(low.expr(s.upper + 1) for s in over)

    def nest(coordinates_so_far: tuple[Expr, ...]) -> None:
        if len(coordinates_so_far) < len(shape):
            with low.loop("i", 0, shape[len(coordinates_so_far)]) as i:
                nest((*coordinates_so_far, i))
            return
        meanings: dict[Symbol, Expr] = dict(zip(over, coordinates_so_far, strict=True))
        for (name, at), source in zip(op.attrs.get("where", ()), indices, strict=True):
            images = Substitution({**low.meaning, **meanings})
            where = source.at(tuple(images(formula) for formula in at))
            index_value = low.unlimited("d")
            low.emit("fetch", (where.buffer,), symbol=index_value, at=(where.offset,))
            meanings[name] = index_value
        images = Substitution({**low.meaning, **meanings})
        memory_coordinates, conditions = [], []
        for (formula, may_leave), size in zip(op.attrs["at"], memory.shape, strict=True):
            coordinate = images(formula)
            if may_leave:
                conditions += [coordinate >= 0, coordinate < size]
            memory_coordinates.append(coordinate)
        inner = memory.at(tuple(memory_coordinates))
        body(coordinates_so_far, TensorAddress(inner.buffer, inner.offset, (*conditions, *inner.conditions)))

    nest(())


def gather(low: LoopLowering, op: Op) -> None:
    """Lower `gather` on a CPU: emit loops that load each element of the first operand from the second one, at the
    coordinates that index tensors give. Elements out of bounds become the attribute `otherwise` (default 0).
    """
    target = low.handles[op.operands[0]]
    memory = in_memory(low, target)
    value: Value = low.register(memory.dtype)

    def body(coordinates: tuple[Expr, ...], where: TensorAddress) -> None:
        load(low, value, (), where, op.attrs.get("otherwise", 0))
        store(low, value, (), memory.at(coordinates), False)

    _for_each_element(low, op, body)
    from_memory(low, memory, target)


def scatter(low: LoopLowering, op: Op) -> None:
    """Lower `scatter` on a CPU: emit loops that store each element of the first operand to the second one, at the
    coordinates that index tensors give. Elements out of bounds are not stored. Of several elements with the same
    coordinates, the last one stays.
    """
    memory = in_memory(low, low.handles[op.operands[0]])
    value: Value = low.register(memory.dtype)

    def body(coordinates: tuple[Expr, ...], where: TensorAddress) -> None:
        load(low, value, (), memory.at(coordinates), 0)
        store(low, value, (), where, False)

    _for_each_element(low, op, body)


def atomic(low: LoopLowering, op: Op) -> None:
    """Lower `atomic` on a CPU: emit loops over the elements of operand 0, a register tensor. Each iteration changes one
    element of operand 1, a tensor in memory: it becomes the result of an atomic operation on its old value and the
    element of operand 0.

    Index tensors, the other operands, give the coordinates in memory. Elements out of bounds are skipped. The attribute
    `how` names the operation (such as add).
    """
    memory = in_memory(low, low.handles[op.operands[0]])
    value: Value = low.register(memory.dtype)

    def body(coordinates: tuple[Expr, ...], where: TensorAddress) -> None:
        load(low, value, (), memory.at(coordinates), 0)
        when = all_of(*where.conditions) if where.conditions else None
        low.emit("atomic", (value, where.buffer), how=op.attrs["how"], at=(where.offset,), when=when)

    _for_each_element(low, op, body)
