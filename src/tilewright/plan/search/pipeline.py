"""Rule: pipelines: stages in shared memory, registers of producer and consumer waves, and overlap of MMAs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product as combinations
from math import ceil

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.schedule import Pipeline
from tilewright.plan.search.counting import result_rows
from tilewright.plan.search.liveness import Liveness, operand_registers
from tilewright.plan.search.placement import HaloTile, OperandPlacement, halo_taps
from tilewright.plan.search.ranking import ENOUGH_STAGES, Ranking
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.unit import MmaTile, refusal_name

AHEAD, ORDERED, PLAIN = "mma ahead", "ordered", "none"
"""MMAs that start one iteration ahead; the same with wave groups in turn; neither."""
FEWEST_STAGES = 2
"""The fewest stages of a loop's operands: one is filled while another is used."""
MOST_STAGES = 8
"""The most stages, unless more are needed to keep enough bytes in flight."""
HALO_STAGES = (4, 3, 2)
"""Stages of halo tiles."""
HALO_PIPELINES = 3
"""The number of buffers of a kernel with halo tiles (halo tiles, B, results); alignment for each is set aside."""
STORED = (2, 1)
"""Epilogue stages to try: buffers of results on their way to memory."""


@dataclass(frozen=True)
class KernelPipeline:
    """The pipeline of a kernel: producer and consumer waves with registers and stages (`roles`), and the overlap of
    MMAs.

    `keeps_a` says that A stays in registers over the loop. `offsets` is for kernels with a halo tile (input patch) of
    A: the number of filter taps in a stage of B, or 0 if all of B is resident. It is None without a halo tile.
    """

    roles: Pipeline
    overlap: str = PLAIN
    keeps_a: bool = False
    offsets: int | None = None


def pipelines(
    t: Tiling, mmas: tuple[MmaTile, ...], live: Liveness, placed: OperandPlacement, ranking: Ranking
) -> Iterator[KernelPipeline]:
    """Yield a KernelPipeline (roles of waves, stages, overlap) for each pipeline that fits registers and shared memory.

    `t` (a Tiling) has the tile sizes. `mmas` are the MMA tiles, `live` has the numbers of live registers per lane,
    `placed` the bytes of shared memory that operands take. `ranking` (the search's result) gets the reason for each
    pipeline that does not fit, except stages of halo tiles. Yields nothing if atoms are synchronous and there is a
    single wave group: that group could not multiply and load at the same time.
    """
    cores = t.machine.limits.cores or 1
    if not mmas[0].atom.asynchronous and t.groups == 1:
        return  # lanes multiply: one wave group multiplies while another loads its operands
    overlaps = [PLAIN]
    if live.dependent:
        overlaps = [AHEAD, ORDERED, PLAIN] if t.groups > 1 else [AHEAD, PLAIN]
    can_pingpong = t.groups == 1 and t.tasks > cores and not t.o.by_threads and not t.o.is_chained
    pingpongs = (False, True) if can_pingpong and mmas[0].atom.asynchronous else (False,)
    for keeps, overlap, pingpong in combinations((True, False) if placed.keepable else (False,), overlaps, pingpongs):
        waves = _fit_registers(t, mmas, live, placed, (keeps, pingpong))
        if isinstance(waves, str):
            ranking.reject(refusal_name(mmas), waves)
            continue
        if placed.halo is not None:
            for halo_roles, offsets in _halo_pipelines(t, mmas[0], placed.halo, waves, pingpong):
                yield KernelPipeline(halo_roles, overlap, keeps, offsets)
            continue
        roles = _fit_stages(t, mmas, live, placed, waves, keeps, pingpong)
        if isinstance(roles, str):
            ranking.reject(refusal_name(mmas), roles)
        else:
            yield KernelPipeline(roles, overlap, keeps)


def _fit_registers(
    t: Tiling, mmas: tuple[MmaTile, ...], live: Liveness, placed: OperandPlacement, choice: tuple[bool, bool]
) -> tuple[tuple[int, int], tuple[int, int]] | str:
    """Divide the registers of a workgroup between producer and consumer waves; or return text if they do not fit.

    The producer copies operands, the consumer multiplies. The result is ((waves, registers per lane) of the producer,
    (waves, registers per lane) of the consumer). It is text if the consumer needs more registers than it gets. `choice`
    is two booleans: A stays in registers over the loop; and ping-pong. `t` is the Tiling, `mmas` are the MMA tiles;
    `live` has the live registers per lane, `placed` the operands in shared memory.
    """
    keeps, pingpong = choice
    limits, atom = t.machine.limits, mmas[0].atom
    groups = t.groups * (1 + pingpong)
    spare, available = consumer_registers(t.machine, atom, groups, bool(t.o.by_threads))
    kept_registers = sum(operand_registers(t, m) for m in placed.keepable) if keeps else 0.0
    loop = live.ahead if live.dependent else live.loop
    reserve = t.machine.register_file.loop_registers if live.dependent else limits.working_registers
    peak = max(loop + kept_registers, live.end) + reserve
    if peak > available:
        return f"registers: {peak:.0f} of {available}"
    waves = atom.c.lanes // (t.machine.lanes or 1)
    return (waves if t.o.by_threads else 1, spare), (waves * groups, available)


@lru_cache
def consumer_registers(machine: Machine, atom: MultiplyAtom, groups: int, by_threads: bool) -> tuple[int, int]:
    """Divide the register file; return (registers per lane of the producer, registers per lane of the consumer).

    The producer copies operands, the consumer multiplies them. The consumer has `groups` wave groups, each with as many
    lanes as `atom` needs. With `by_threads`, the producer's lanes copy without bulk copies and need more registers. The
    result is cached.
    """
    limits, file, registers = machine.limits, machine.register_file, machine.spaces["register"].bytes
    assert registers is not None
    sharing, unit = groups + 1, file.role_unit  # the producer counts as a wave group; all start with equal registers
    lane_registers = (
        registers // file.word_bytes // atom.c.lanes // sharing // unit * unit * sharing
    )  # the sum over one lane of each wave group
    # the producer has two units fewer for each consumer wave group
    spare = limits.gathering_registers if by_threads else limits.loading_registers - 2 * unit * groups
    return spare, min(
        (limits.registers - file.role_reserved) // unit * unit, (lane_registers - spare) // groups // unit * unit
    )


def _fit_stages(
    t: Tiling,
    mmas: tuple[MmaTile, ...],
    live: Liveness,
    placed: OperandPlacement,
    waves: tuple[tuple[int, int], tuple[int, int]],
    keeps: bool,
    pingpong: bool,
) -> Pipeline | str:
    """Return a Pipeline with as many stages as hide latency and fit shared memory; or text if too few stages fit.

    `waves` is ((waves, registers per lane) of the producer, the same of the consumer). With `keeps`, A stays in
    registers over the loop; with `pingpong`, two halves of the consumer waves take tasks in turn. `t` is the Tiling,
    `mmas` are the MMA tiles; `live` has the MMAs that wait for each other, `placed` the shared memory of operands.
    """
    machine, space, halves = t.machine, t.machine.spaces["shared"], 1 + pingpong
    last = next(m for m in mmas if m.node == live.results[-1])
    chained = t.o.is_chained
    regions = 2 * len(mmas) + 1 if chained else halves
    assert space.bytes is not None
    room = space.bytes - regions * space.alignment - placed.between - _exchange_bytes(t, mmas[0])
    result = last.rows * last.row_bytes * (_result_bytes_per_operand_byte(t, last) * t.across if chained else 1)
    result += last.rows * _narrow_piece_bytes(t, last)
    stage = max(1.0, placed.staged)
    resident = placed.resident
    computes_a = any(m.oriented.a_in_registers and m.oriented.a.reads and not m.oriented.a.products for m in mmas)
    single_buffered = keeps or computes_a  # operands that are loaded to registers at once need no second stage
    choices = [(once, stored) for once in ((2, 1) if resident and not single_buffered else (1,)) for stored in STORED]
    fits = {
        (once, stored): int((room - once * resident - halves * stored * result) // stage) for once, stored in choices
    }
    enough = FEWEST_STAGES if live.dependent else ENOUGH_STAGES
    pick = next((x for x in choices if fits[x] >= enough), None)
    pick = pick or (choices[-1] if live.dependent else max(choices, key=lambda x: min(ENOUGH_STAGES, fits[x])))
    in_flight = 0.0 if chained else 2 * machine.limits.copy_latency * machine.limits.l2_rate / stage
    stages = ceil(min(max(MOST_STAGES, in_flight), fits[pick]))
    trips = max((t.trips(loops) for loops in placed.stages), default=1)
    fewest = FEWEST_STAGES if trips > 1 or (chained and t.looped) else 1
    if stages < fewest:
        return f"shared memory: {fewest} stages of {stage:.0f} bytes and {resident:.0f} once"
    return Pipeline(
        *waves, stages, pick[1], pingpong=pingpong, resident_stages=pick[0], per_group_store=chained and t.down > 1
    )


def _narrow_piece_bytes(t: Tiling, last: MmaTile) -> int:
    """Return the bytes of shared memory, per row of results, for one piece of each width after the first.

    The machine's bulk store cuts a row into pieces of decreasing widths. The result is 0 if all pieces are equally
    wide, or if the machine has no bulk store. `last` is the tile of the MMA that computes the result, `t` the Tiling.
    """
    store, result = t.machine.bulk_store, result_rows(t, last)
    pieces = () if store is None else store.row_pieces(result.columns * result.bytes)
    return sum(width for width, _ in pieces[1:])


def _result_bytes_per_operand_byte(t: Tiling, last: MmaTile) -> float:
    """Return the bytes per element of the widest result divided by the bytes per element of A of the MMA `last`."""
    return max(w.bytes for w in t.facts.writes) / (last.atom.a.dtype.bits / 8)


def _exchange_bytes(t: Tiling, m: MmaTile) -> float:
    """Return the bytes of shared memory per workgroup with which wave groups combine reductions along rows of C.

    It is 0 if each row belongs to one wave group. `m` is the MMA's tile, `t` the Tiling.
    """
    if t.across == 1:
        return 0.0
    reductions = [n for n in t.facts.nodes if n.reduces and n.op != "mma"]
    return sum(n.bytes for n in reductions) * m.rows * m.atom.c.lanes / m.atom.shape[0] * t.groups


def _halo_pipelines(
    t: Tiling, m: MmaTile, halo: HaloTile, waves: tuple[tuple[int, int], tuple[int, int]], pingpong: bool
) -> Iterator[tuple[Pipeline, int]]:
    """Yield up to two (Pipeline, filter taps per stage of B) for a convolution that loads A as halo tiles.

    A halo tile is an input patch; `halo` describes it. In the first Pipeline, B has stages. In the second, all of B is
    resident in shared memory, and the taps are 0; it is yielded only if all workgroups use the same B. A Pipeline that
    does not fit shared memory is left out. `m` is the MMA's tile, `t` the Tiling. `waves` is ((waves, registers per
    lane) of the producer, the same of the consumer). With `pingpong`, two halves of the consumer waves take tasks in
    turn.
    """
    space, halves = t.machine.spaces["shared"], 1 + pingpong
    assert space.bytes is not None
    room = space.bytes - (HALO_PIPELINES + pingpong) * space.alignment
    offsets = halo.taps[-1] if halo.tap * halo.taps[-1] <= t.machine.bulk_copy.taps_bytes else 1
    taps = halo_taps(halo)
    for stored in STORED:
        left = room - halves * stored * m.rows * m.row_bytes
        stages = int(max(0, left - HALO_STAGES[-1] * halo.bytes) // (offsets * halo.tap))
        if stages * offsets >= ENOUGH_STAGES and stages > 1:
            stages = min(MOST_STAGES, stages)
            tiles = next(n for n in HALO_STAGES if n * halo.bytes + stages * offsets * halo.tap <= left)
            yield Pipeline(*waves, stages, stored, tiles, pingpong), offsets
            break
    columns = [(c, tile) for c, tile in t.pairs() if "c" in c.roles]
    if any(tile.count > 1 for _, tile in columns) or any(c.is_batch and tile.count > 1 for c, tile in t.pairs()):
        return
    for stored in STORED:
        left = room - halves * stored * m.rows * m.row_bytes - halo.chunks * taps * halo.tap
        if left >= HALO_STAGES[-1] * halo.bytes:
            yield Pipeline(*waves, 1, stored, int(min(HALO_STAGES[0], left // halo.bytes)), pingpong), 0
            break
