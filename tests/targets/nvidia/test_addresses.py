"""Where loads, stores and lanes' copies go, and under which condition: what their addresses are made of."""

from __future__ import annotations

import re

from programs import CASES

from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.registry import machine

MOVED = """
block moved(%x: in global f16 (33, 64), %y: out global f16 (33, 64))
  machine ampere
  waves 1
{
  %s = alloc shared f16 (16, 64) SWIZZLE
  tasks t in 0..3 {
    %from = view %x (i 16, j 64) -> [16*t + i ?, j]
    copy %from -> %s else 0
    %to = view %y (i 16, j 64) -> [16*t + i ?, j]
    copy %s -> %to
  }
}
"""


def emitted(text: str) -> list[str]:
    program = bind(parse_block(text), {})
    here = machine("ampere")
    return [line.strip() for line in BACKEND.emitted(lower_waves(program, here), here).text.splitlines()]


def made_of(lines: list[str], name: str) -> set[str]:
    """The instructions that a value comes from, through all it is made of."""
    definitions = dict(re.findall(r"^(%[\w.]+) = (.*)$", "\n".join(lines), re.M))
    found, left, seen = set(), [name], set()
    while left:
        value = left.pop()
        if value in seen or value not in definitions:
            continue
        seen.add(value)
        found.add(definitions[value].split()[0])
        left += re.findall(r"%[\w.]+", definitions[value])
    return found


def addresses(lines: list[str], pattern: str) -> list[str]:
    return [found[1] for line in lines if (found := re.search(pattern, line))]


def test_loads_and_stores_of_swizzled_memory_go_where_the_swizzle_says() -> None:
    lines = emitted(MOVED.replace("SWIZZLE", "swizzle <3,3,3>"))
    stores = addresses(lines, r"^store .* ptr addrspace\(3\) (%\w+), align")
    loads = addresses(lines, r"= load .* ptr addrspace\(3\) (%\w+), align")
    assert len(stores) == len(loads) > 0
    assert all("xor" in made_of(lines, address) for address in (*stores, *loads))


def test_what_may_lie_outside_is_loaded_and_stored_under_a_condition() -> None:
    lines = emitted(MOVED.replace("SWIZZLE", ""))
    places = [i for i, line in enumerate(lines) if re.search(r"(^store|= load) .* ptr addrspace\(1\)", line)]
    assert places
    for place in places:
        label = next(line for line in reversed(lines[:place]) if line.endswith(":"))
        assert label.startswith("then")


def test_copies_of_lanes_go_to_swizzled_places_and_read_so_many_bytes_as_there_are() -> None:
    case = next(case for case in CASES if case.name == "cp_async_widths")
    lines = emitted(case.text)
    shape = r'"cp\.async\.(c[ag])\.shared\.global \[\$0\], \[\$1\], (\d+), \$2;".*\(i32 (%\w+), ptr .* i32 (%\w+)\)$'
    found = [re.search(shape, line) for line in lines]
    calls = {(call[1], int(call[2])): (call[3], call[4]) for call in found if call}
    assert set(calls) == {("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)}
    assert {key for key, (to, _) in calls.items() if "xor" in made_of(lines, to)} == {("ca", 16)}
    assert all("select" in made_of(lines, count) for _, count in calls.values())


def test_the_barrier_waits_for_copies_of_lanes_before_the_wave_arrives() -> None:
    case = next(case for case in CASES if case.name == "cp_async_widths")
    text = "\n".join(emitted(case.text))
    order = [text.index(word) for word in ("cp.async.mbarrier.arrive", "bar.warp.sync(i32 -1)", '"mbarrier.arrive')]
    assert order == sorted(order)
