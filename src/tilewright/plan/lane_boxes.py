"""Boxes of results for lanes that do products term by term: what results next to each other read is brought once.

    axis M = (M_2 256, M_1 28, M_0 28): task 224, unit M_0 7
    axis K = (K 9): loop 3

Every lane has seven neighbours of a line, of its own channels. For the three taps of a line of the filter it reads nine
neighbours, instead of three for each of the seven; they stay in its registers, and terms take from there.

    axis M = (M_1 1080, M_0 1920): task 896, unit M_1 7
    axis K = (K 36): whole

Where channels are summed, and there is one result of a place, lanes go along places: every lane has seven of a column,
and reads the channels of nine by three of them, some channels at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as every
from math import ceil, prod

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op
from tilewright.machine import Machine
from tilewright.plan.model import Size, cores
from tilewright.plan.rows import tasks_of
from tilewright.plan.term_boxes import Terms, resident_waves, with_window, written_out

LONGEST, SLIDING = 16, 2
"""Results of a lane along a digit, at most, and digits, the last ones, along which there are several."""


def lane_boxes(
    plain: Terms,
    read: Op,
    digits: Sequence[Symbol],
    tiles: Sequence[int],
    ragged: Sequence[bool],
    size: Size,
    machine: Machine,
) -> Iterator[Terms]:
    """The boxes that a lane has registers for, and in which results share what they read.

    `tiles` are how many terms may be done at a time; `ragged` says of each digit whether boxes may go past its end.
    """
    file, waves = machine.register_file, machine.row_tasks.waves
    extents = [size(d) for d in digits]
    lengths = [range(1, min(n, LONGEST) + 1) if k < SLIDING else (1,) for k, n in enumerate(reversed(extents))]
    for sizes in every(*reversed(lengths)):
        if prod(sizes) == 1 or any(n % b and not past for n, b, past in zip(extents, sizes, ragged, strict=True)):
            continue
        for tile in tiles:
            found = replace(plain, tile=tile, sizes=sizes)
            if found.sums > file.tensor_values:
                continue
            found = with_window(found, read, digits, size)
            fits = (
                found.sums + found.windows <= file.lane_values and resident_waves(machine, found.held, waves) >= waves
            )
            fits = fits and found.beside * found.each <= machine.lane_access.own_bytes
            if fits and found.window < found.results * tile:
                yield found


@dataclass(frozen=True, order=True)
class TermCost:
    """Cycles that a core should take, with memory and the launch; of as many, those without."""

    cycles: float
    computed: float


def cost_by_terms(
    terms: Terms, widths: Mapping[Expr, int], waves: int, size: Size, machine: Machine, moved: float
) -> TermCost:
    """What a core should take: the instructions of its waves, or waves one after the other with what each waits for, or
    memory, which takes `moved` cycles of one core; and the launch. Rounds that are written out wait together.
    """
    written = written_out(terms, widths, waves, machine)
    limits, costs, lanes, values = machine.limits, machine.costs.terms, machine.lanes or 1, terms.values
    boxes = max(1, ceil(prod(widths.values()) / (values * terms.results * lanes * waves)))
    count, widened = size(terms.summed), values if terms.each < terms.wide else 0
    rounds = ceil(count / terms.tile)
    loads = rounds * boxes * (terms.window // terms.together)
    done = loads * costs.load + rounds * boxes * terms.window * widened
    done += count * (boxes * terms.results * values + 1 + widened)
    done += boxes * terms.results * (values // 2 + costs.result) + costs.task
    tasks = tasks_of(widths, size)
    own = ceil(tasks / cores(machine)) * waves
    together = min(own, max(waves, resident_waves(machine, boxes * terms.held, waves)))
    one = done * costs.waiting + (1 if rounds <= written else rounds) * limits.copy_latency
    line = machine.lane_access.line_bytes
    lines = min(lanes, ceil(lanes * terms.apart / line))  # a load takes them one after the other
    computed = max(own * done * lanes / limits.lane_rate, own * loads * lines, ceil(own / together) * one)
    return TermCost(max(computed, moved / min(tasks, cores(machine))) + limits.launch_cycles, computed)
