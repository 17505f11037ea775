"""Bound programs at other addresses: every launch gets those of its own tensors, workspaces stay."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.block import parse_block
from tilewright.ir.host import parse_host
from tilewright.ir.module import Module
from tilewright.limits import ELEMENTS
from tilewright.runtime.host import HostExecutor, HostMemory

HOST = """host f(%a: in global f32 (2, 3), %b: in global f32 (6), %y: out global f32 (6))
{{
  %t = workspace global f32 (6)
  %flat = reshape %a [6]
  {}
}}
"""


class Told(HostMemory):
    """A device whose launches keep where they are started."""

    room = ELEMENTS

    def __init__(self):
        self.said = []

    def prepare(self, program, params):
        return Launched(self, program.name)


class Launched:
    def __init__(self, device, name, arrays=()):
        self.device, self.name, self.arrays = device, name, arrays

    def launch(self, arrays, workers, params):
        return Launched(self.device, self.name, arrays)

    def __call__(self):
        self.device.said.append(self.name)

    def at(self, pointers):
        self.device.said.append((self.name, *pointers))

    def forget(self):
        self.arrays = ()


def bound(*lines):
    device = Told()
    names = ("first", "second")
    programs = [f"block {n}(%x: in global f32 (6), %z: in global f32 (6), %w: out global f32 (6)) {{}}" for n in names]
    host = parse_host(HOST.format("\n  ".join(lines)))
    executor = HostExecutor(Module.of(host, map(parse_block, programs)), device)
    shapes = ((2, 3), (6,), (6,))
    return executor.bind([np.zeros(shape, np.float32) for shape in shapes]), device


def test_a_launch_in_the_order_of_the_arguments_is_returned_itself():
    launch, device = bound("launch first(%flat, %b, %y) workers 1")
    launch.at([1, 2, 3])
    assert device.said == [("first", 1, 2, 3)]
    assert isinstance(launch, Launched)


def test_every_launch_gets_the_addresses_of_its_own_tensors():
    launch, device = bound("launch first(%b, %flat, %t) workers 1", "launch second(%t, %b, %y) workers 1")
    launch()
    launch.at([1, 2, 3])
    assert device.said == ["first", "second", ("first", 2, 1, None), ("second", None, 2, 3)]
    launch.forget()


def test_arguments_in_another_order_are_brought_in_it():
    launch, device = bound("launch first(%b, %flat, %y) workers 1")
    launch.at([1, 2, 3])
    assert device.said == [("first", 2, 1, 3)]


def test_steps_on_workspaces_are_done_as_before():
    launch, device = bound("fill %t 0", "launch first(%t, %b, %y) workers 1")
    launch.at([1, 2, 3])
    assert device.said == [("first", None, 2, 3)]


@pytest.mark.parametrize("line", ["fill %y 0", "fill %y 1"])
def test_what_is_filled_at_an_argument_does_not_move(line):
    launch, _ = bound(line, "launch first(%flat, %b, %y) workers 1")
    assert launch.at is None
