"""The passes that write the block program of a contraction, in order; each fills in a part of the draft."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.passes.contraction import tiles, vectors
from tilewright.passes.contraction.draft import Draft
from tilewright.passes.contraction.packing import Packing, packed_for_vectors
from tilewright.plan.contraction import Contraction
from tilewright.plan.forms import Form, TileForm

PASSES = ("place", "stage", "multiply", "finish")
"""Tasks and loops; rows where they are read; products by atoms; epilogue and store."""


def packing_of(c: Contraction, form: Form) -> Packing:
    """The program that packs the columns' factor."""
    if isinstance(form, TileForm):
        return tiles.packed_for_tiles(c, form)
    return packed_for_vectors(c, form.columns, form.group)


def write(
    c: Contraction, form: Form, machine: str, packed: tuple[int, ...], after: Callable[[str, Draft], None] | None = None
) -> str:
    """The block text of the main program; `after` sees the draft after each pass."""
    draft = Draft(c, form, machine, packed)
    module = tiles if isinstance(form, TileForm) else vectors
    for name in PASSES:
        getattr(module, name)(draft)
        if after is not None:
            after(name, draft)
    return str(draft)
