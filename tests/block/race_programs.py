"""Programs with a planted race, so many copies apart, and their twins without it.

Each plant is a function: (distance, whether the race is there) -> text. The two racing accesses have `distance` - 1
copies between them, or tasks where tasks race. A twin has the same operations, and its last access goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import errors
from tilewright.compiler.text import compile_text

Array = np.ndarray[Any, np.dtype[Any]]
Plant = Callable[[int, bool], str]

TASKS = 2
WIDTH = 32  # f32: the 128 bytes that a row of shared memory must be made of


def _program(arguments: str, body: str) -> str:
    return f"block planted(%x: in global f32 ({WIDTH}), {arguments})\n  machine hopper\n{{\n{body}}}\n"


def _ring(name: str, role: str, stages: int) -> str:
    return f"""
  %{name}s = alloc shared f32 ({stages}, {WIDTH})
  %{name} = channel %{name}s stages {stages} from {role} to {role}
"""


def _store(ring: str, where: str) -> str:
    """A row goes through a stage of its own, and leaves by itself."""
    return f"""
      %free = acquire %{ring}
      copy %x -> %free
      commit %{ring}
      %full = wait %{ring}
      %to = view %y (i {WIDTH}) -> [{where}, i]
      copy %full -> %to by tma.store
      release %{ring}
"""


def stores(distance: int, planted: bool) -> str:
    """Two asynchronous stores write one row."""
    rows = distance + (not planted)
    return _program(
        f"%y: out global f32 ({TASKS}, {rows}, {WIDTH})",
        _ring("ring", "only", distance + 1)
        + f"""  role only waves 1 {{
    tasks t in 0..{TASKS} {{
      for k in 0..{distance + 1} {{{_store("ring", f"t, k%{rows}")}      }}
    }}
  }}
""",
    )


def store_and_write(distance: int, planted: bool) -> str:
    """An asynchronous store and an ordinary one write one row."""
    return _program(
        f"%y: out global f32 ({TASKS}, {distance + (not planted)}, {WIDTH})",
        _ring("ring", "only", distance)
        + f"""  role only waves 1 {{
    tasks t in 0..{TASKS} {{
      for k in 0..{distance} {{{_store("ring", "t, k")}      }}
      %again = view %y (i {WIDTH}) -> [t, {0 if planted else distance}, i]
      copy %x -> %again
    }}
  }}
""",
    )


def loads(distance: int, planted: bool) -> str:
    """Two asynchronous loads write one row of a stage."""
    rows = distance + (not planted)
    return _program(
        f"%y: out global f32 ({TASKS}, {rows}, {WIDTH})",
        f"""  %s = alloc shared f32 (1, {rows}, {WIDTH})
  %ring = channel %s stages 1 from producer to consumer
  role producer waves 1 {{
    tasks t in 0..{TASKS} {{
      %free = acquire %ring
      for k in 0..{distance + 1} {{
        %row = view %free (i {WIDTH}) -> [k%{rows}, i]
        copy %x -> %row by tma.load
      }}
      commit %ring
    }}
  }}
  role consumer waves 2 {{
    tasks t in 0..{TASKS} {{
      %full = wait %ring
      %to = view %y (r {rows}, i {WIDTH}) -> [t, r, i]
      copy %full -> %to
      release %ring
    }}
  }}
""",
    )


def load_and_write(distance: int, planted: bool) -> str:
    """What an asynchronous load reads is overwritten."""
    rows = distance + (not planted)
    return _program(
        f"%y: inout global f32 ({TASKS}, {rows}, {WIDTH}), %z: out global f32 ({TASKS}, {distance}, {WIDTH})",
        f"""  %s = alloc shared f32 ({distance}, {WIDTH})
  %ring = channel %s stages {distance} from producer to consumer
  role producer waves 1 {{
    tasks t in 0..{TASKS} {{
      for k in 0..{distance} {{
        %free = acquire %ring
        %row = view %y (i {WIDTH}) -> [t, k, i]
        copy %row -> %free by tma.load
        commit %ring
      }}
      %again = view %y (i {WIDTH}) -> [t, {0 if planted else distance}, i]
      copy %x -> %again
    }}
  }}
  role consumer waves 1 {{
    tasks t in 0..{TASKS} {{
      for k in 0..{distance} {{
        %full = wait %ring
        %to = view %z (i {WIDTH}) -> [t, k, i]
        copy %full -> %to
        release %ring
      }}
    }}
  }}
""",
    )


def roles(distance: int, planted: bool) -> str:
    """Two roles that nothing joins store to one row."""
    return _program(
        f"%y: out global f32 ({TASKS}, {distance + (not planted)}, {WIDTH})",
        _ring("mine", "one", distance)
        + _ring("other", "two", 1)
        + f"""  role one waves 1 {{
    tasks t in 0..{TASKS} {{
      for k in 0..{distance} {{{_store("mine", "t, k")}      }}
    }}
  }}
  role two waves 1 {{
    tasks t in 0..{TASKS} {{{_store("other", f"t, {0 if planted else distance}")}    }}
  }}
""",
    )


def tasks(distance: int, planted: bool) -> str:
    """Two tasks of one loop store to one row."""
    rows = distance + (not planted)
    return _program(
        f"%y: out global f32 ({rows}, {WIDTH})",
        _ring("ring", "only", 2)
        + f"""  role only waves 1 {{
    tasks t in 0..{distance + 1} {{{_store("ring", f"t%{rows}")}    }}
  }}
""",
    )


def loops(distance: int, planted: bool) -> str:
    """A task reads what another task of the loop before wrote."""
    count, shift = distance + 1, distance if planted else 0
    return f"""block planted(%x: in global f32 ({WIDTH}), %y: inout global f32 ({count}, {WIDTH}),
    %z: out global f32 ({count}, {WIDTH}))
{{
  tasks t in 0..{count} {{
    %row = view %y (i {WIDTH}) -> [t, i]
    copy %x -> %row
  }}
  tasks u in 0..{count} {{
    %from = view %y (i {WIDTH}) -> [(u + {shift})%{count}, i]
    %to = view %z (i {WIDTH}) -> [u, i]
    copy %from -> %to
  }}
}}
"""


PLANTS: dict[str, Plant] = {
    f.__name__: f for f in (stores, store_and_write, loads, load_and_write, roles, tasks, loops)
}


def run(text: str, workers: int, seed: int) -> list[Array]:
    """The outputs of a planted program or its twin."""
    program = compile_text(text, workers=workers, seed=seed, target="interpreter")
    arrays = []
    for arg in program.main.args:
        shape = tuple(int(n) for n in arg.type.shape)
        arrays.append(np.full(shape, arg.type.role != "out", np.float32))
    program(*arrays)
    return arrays[1:]


def reported(text: str, workers: int, seed: int) -> bool:
    """Whether a race is reported."""
    try:
        run(text, workers, seed)
    except errors.RaceFault:
        return True
    return False
