"""Programs that begin while the launch before ends: on every path they wait before they touch global memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.compiler.text import compile_text
from tilewright.plan.schedule import LAUNCH

GLOBAL = re.compile(r"\b(ld|st|atom|red)(\.\w+)*\.global\b|\bcp\.(reduce\.)?async|\bprefetch\.(global|L)")
"""Instructions that read or write global memory: those of lanes, and copies that go on by themselves."""
WAIT, SIGNAL = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
BARRIER = re.compile(r"cp\.async\.(bulk\.)?(commit_group|wait_group|wait_all|mbarrier)")

KERNELS = {
    "gemm": (kernels.gemm("nt", "bf16", "bf16"), {"M": 200, "N": 136, "K": 200}),
    "gemm with an epilogue": (kernels.gemm("nn", "bf16", "f32", bias=True), {"M": 130, "N": 72, "K": 64}),
    "gemm in turns": (kernels.gemm("nt", "bf16", "bf16"), {"M": 5120, "N": 5120, "K": 640}),
    "gemm copied by waves": (kernels.gemm("nt", "bf16", "bf16"), {"M": 33, "N": 41, "K": 13}),
    "gemm copied to rows": (kernels.gemm("nt", "bf16", "bf16"), {"M": 33, "N": 41, "K": 77}),
    "gemm without roles": (kernels.gemm("nt", "f32", "f32"), {"M": 18, "N": 20, "K": 70}),
    "gemm in parts": (kernels.gemm("nt", "bf16", "bf16"), {"M": 64, "N": 64, "K": 32768}),
    "conv with halo tiles": (kernels.conv((3, 3), "bf16", padding=1), {"N": 32, "H": 56, "W": 56, "C": 64, "F": 64}),
    "conv tap by tap": (kernels.conv((3, 3), "bf16", stride=2), {"N": 3, "H": 9, "W": 7, "C": 128, "F": 64}),
    "attention": (
        kernels.attention(64, "bf16", causal=True),
        {"B": 1, "H": 4, "M": 512, "N": 512, "D": 64, "E": 64},
    ),
    "softmax": (kernels.softmax("bf16"), {"M": 64, "N": 4096}),
}


def blocks_of(text: str) -> dict[str, list[str]]:
    """The lines of a kernel by the label before them; labels within inline assembly are no ends of blocks."""
    body = text[text.index("{", text.index(".entry")) :]
    found: dict[str, list[str]] = {"": []}
    label = ""
    for line in body.splitlines():
        if named := re.match(r"(\$L\w+):", line.strip()):
            label = named[1]
            found[label] = []
        else:
            found[label].append(line.strip())
    return found


def before_the_wait(text: str) -> Iterator[str]:
    """Instructions on global memory, and signals, that some path reaches before a wait."""
    blocks = blocks_of(text)
    order, open_, seen = list(blocks), [""], {""}
    while open_:
        label = open_.pop()
        after = order[order.index(label) + 1 :][:1]
        for line in blocks[label]:
            if line.startswith(WAIT):
                after = []
                break
            if (GLOBAL.search(line) and not BARRIER.search(line)) or line.startswith(SIGNAL):
                yield line
            if jump := re.match(r"(@!?%\w+ )?bra(?:\.uni)?\s+(\$L\w+);", line):
                if jump[2] not in seen:
                    open_.append(jump[2])
                    seen.add(jump[2])
                if jump[1] is None:
                    after = []
                    break
            if line.startswith("ret;"):
                after = []
                break
        open_ += [x for x in after if x not in seen]
        seen.update(after)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KERNELS)
def test_every_path_waits_before_it_touches_global_memory(name: str) -> None:
    kernel, sizes = KERNELS[name]
    made = kernel_for(kernel, sizes, target="gpu:hopper")
    assert made.plan is not None
    assert made.module is not None
    early = [p for p in made.module.programs.values() if p.record("launch") is not None]
    copied = any(p.at == LAUNCH for p in made.plan.values)
    assert copied == (name == "gemm copied to rows")
    assert len(early) == (2 if made.plan.parts is not None or copied else 1)
    for program in early:
        text = compile_text(str(program), "gpu:hopper").text("ptx")
        assert any(GLOBAL.search(line) for line in text[text.index(WAIT) :].splitlines())
        assert (SIGNAL in text) == all(op.name != "mma" for op in program.walk())  # those let the next in at their end
        assert list(before_the_wait(text)) == []


def test_a_touch_before_the_wait_is_seen() -> None:
    text = kernel_for(*KERNELS["gemm with an epilogue"], target="gpu:hopper").text("ptx")
    assert text.count(WAIT) > 1  # each role waits
    first = text.index(WAIT)
    assert list(before_the_wait(text[:first] + text[first + len(WAIT) + 1 :]))
    assert text.index("setmaxnreg") < first
