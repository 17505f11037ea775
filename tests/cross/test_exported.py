"""Exported objects of other CPUs, called as C calls them, under an emulator; those of this CPU without one.

    make test-cross

The object is linked with nothing but a function that calls it: a buffer lies between pages that do not exist.
"""

from __future__ import annotations

import numpy as np
import pytest
from elf import Image, linked
from emulated import emulate, started, why_not
from exported_kernels import SEVERAL, arrays_for
from more_exported_kernels import ALL, CALL_SIZES

import tilewright
from tilewright.runtime.codegen import HELPER
from tilewright.targets.cpu.exported import object_options
from tilewright.targets.registry import machine

pytestmark = pytest.mark.cross
ROUNDED = {"f32": 2e-6, "bf16": 2**-7, "f16": 2**-9}
"""Relative differences that kernels with exponentials, roots or divisions may have: a few roundings of the result."""
FUNCTIONS = ("softmax", "attention", "norm", "gelu", "silu", "gated", "gemm_bias")
"""What the names of such kernels have in them."""
ARGUMENTS = "ptr, ptr, ptr, ptr, ptr"


def called(files, arrays, sizes):
    """What an exported kernel makes of arrays: its outputs, as a program of its own writes them."""
    manifest, family = files.manifest, files.manifest["machine"]["name"].partition(".")[0]
    name, image = manifest["name"], Image()
    behind = bytes(32 if family == "x86" else 0)  # the emulator reads there, though the CPU does not
    places = [image.place(a.tobytes() + behind, at_end=n % 2 == 0) for n, a in enumerate(arrays)]
    room = bytes(1 << 20)
    given = [image.place(np.array(words, np.uint64).tobytes(), at_end=False) for words in (places, sizes or [0])]
    given += [image.place(room, at_end=False), image.place(room, at_end=False)]
    code = image.place(bytes(8), at_end=False)
    told = ", ".join([*(f"ptr inttoptr (i64 {place} to ptr)" for place in given), "ptr null"])
    calls = [
        f"  %first = call i32 @{name}_bind({told})",
        f"  %second = call i32 @{name}({told})",
        "  %both = or i32 %first, %second",
        f"  store i32 %both, ptr inttoptr (i64 {code} to ptr)",
    ]
    declared = [f"declare i32 @{name}_bind({ARGUMENTS})", f"declare i32 @{name}({ARGUMENTS})"]
    outputs = [(code, 4), *((place, a.nbytes) for place, a in zip(places, arrays, strict=True))]
    options = object_options(machine(manifest["machine"]["name"]))
    start = HELPER.ask(options.request("object"), started(family, declared, calls, outputs))
    found = emulate(family, linked([files.code.read_bytes(), start], image))
    assert int.from_bytes(found[:4], "little") == 0
    results, at = [], 4
    for array in arrays:
        results.append(np.frombuffer(found[at : at + array.nbytes], array.dtype).reshape(array.shape))
        at += array.nbytes
    return results


@pytest.mark.parametrize("target", ["aarch64.neon", "aarch64.neon.fullfp16.dotprod.bf16.i8mm", "x86.avx2"])
@pytest.mark.parametrize("name", ALL)
def test_an_exported_object_does_what_the_kernel_means(name, target, tmp_path):
    why = why_not(target)
    if why is not None:
        pytest.skip(why)
    kernel, sizes, options = ALL[name]
    files = tilewright.export(kernel, tmp_path / name, sizes, name=name, target=f"cpu:{target}", **options)
    calls = {**SEVERAL, **CALL_SIZES}.get(name, {})
    arrays = arrays_for(files.manifest, np.random.default_rng(5), calls)
    wanted = [a.copy() for a in arrays]
    if isinstance(kernel, str):
        tilewright.compile_text(kernel, "interpreter").bind(*wanted, params=calls)()
    else:
        tilewright.compile(kernel, target="executor")(*wanted)
    told = [calls[row["name"]] for row in files.manifest["sizes"]]
    results = called(files, arrays, told)
    for argument, mine, theirs in zip(files.manifest["arguments"], results, wanted, strict=True):
        if any(part in name for part in FUNCTIONS):
            rounding = ROUNDED[argument["type"]]
            assert np.allclose(mine.astype(np.float64), theirs.astype(np.float64), rtol=rounding, atol=rounding)
        else:
            assert np.array_equal(mine, theirs)
