"""NVIDIA's instructions for the operations of the loop level, as LLVM's intrinsics or as PTX text."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewright.algebra.expr import Const
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType, f32, i32
from tilewright.targets.gpu.dialect import Accuracy
from tilewright.targets.gpu.emit import ALIGNMENT
from tilewright.targets.gpu.live import registers_of_products
from tilewright.targets.nvidia import cp_async, eights, fma, functions, mma, rounding, wgmma
from tilewright.targets.nvidia.boxes import TensorBox, boxes, parameter

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

REGISTERS = 65536
"""32-bit registers of a multiprocessor."""
THREADS = 1024
"""Threads that a multiprocessor needs at least, so that enough of them wait for memory while others compute."""
FEWEST, OTHERS = 8, 24
"""Registers of a thread beside those that hold what it multiplies: the fewest, and as many as it should have where so
many threads have no room for that (addresses, conditions)."""
# thread 0 brings a tensor map near before it is used
_LOOK_UP = "{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; @p prefetch.tensormap [$0]; }"
_SPECIAL = "llvm.nvvm.read.ptx.sreg"


def _at_entry(threads: int) -> int:
    """The registers of a thread when a kernel begins."""
    return min(255, REGISTERS // threads) // 8 * 8


def _together(e: Emitter) -> str:
    """How many workgroups a multiprocessor should have room for: several, where what they wait for is memory; no more
    than have registers for what their lanes hold."""
    rounds = -(-e.tasks.value // (e.machine.limits.cores or 1)) if isinstance(e.tasks, Const) else THREADS
    held = registers_of_products(e.program)
    full = held > REGISTERS // THREADS - FEWEST
    room = REGISTERS // (e.threads * (held + OTHERS)) if full else THREADS
    count = max(1, min(THREADS // e.threads, rounds, room)) if e.waits_for_memory else 1
    return f'"nvvm.minctasm"="{count}"'


class Ptx:
    """PTX for one kernel."""

    waves_together = 4

    def module(self, e: Emitter) -> str:
        """The kernel: pointers of the tensors, open sizes, then tensor maps, which stay where the launch put them."""
        pointers = [f"ptr addrspace(1) %t{i}" for i in range(len(e.program.args))]
        pointers += [f"i32 %n{i}" for i in range(len(e.sizes))]
        if e.counted:
            pointers.append("ptr addrspace(1) %counters")
        maps = [f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %m{i}' for i in range(len(e.parameters))]
        looked_up = [f'  call void asm sideeffect "{_LOOK_UP}", "l"(ptr %m{i})' for i in range(len(e.parameters))]
        return "\n".join(
            [
                'target triple = "nvptx64-nvidia-cuda"',
                f"@shared = external addrspace(3) global [0 x i8], align {ALIGNMENT}",
                *e.w.declared,
                f"define ptx_kernel void @{e.program.name}({', '.join([*pointers, *maps])}) #0 {{",
                "entry:",
                *e.w.slots,
                *looked_up,
                e.w.text(),
                "  ret void",
                "}",
                f'attributes #0 = {{ nounwind convergent "nvvm.maxntid"="{e.threads}" {_together(e)} }}',
                "",
            ]
        )

    # -- who ------------------------------------------------------------------------------------------------

    def _special(self, e: Emitter, name: str) -> str:
        e.w.declare(f"i32 @{_SPECIAL}.{name}()")
        return e.w.value(f"call i32 @{_SPECIAL}.{name}()")

    def thread(self, e: Emitter) -> str:
        """The thread's number."""
        return self._special(e, "tid.x")

    def worker(self, e: Emitter) -> str:
        """The block's number."""
        return self._special(e, "ctaid.x")

    def workers(self, e: Emitter) -> str:
        """How many blocks there are."""
        return self._special(e, "nctaid.x")

    def rank(self, e: Emitter) -> str:
        """The block's number in its cluster."""
        return self._special(e, "cluster.ctarank")

    def together_at_the_end(self, e: Emitter) -> None:
        """barrier.cluster, for threads that come from different branches."""
        e.w.assembly("barrier.cluster.arrive;\nbarrier.cluster.wait;")

    def uniform(self, e: Emitter, value: str) -> str:
        """What lane 0 has."""
        return self.from_lane(e, value, "0")

    def from_lane(self, e: Emitter, value: str, lane: str) -> str:
        """shfl.sync.idx."""
        e.w.declare("i32 @llvm.nvvm.shfl.sync.idx.i32(i32, i32, i32, i32)")
        return e.w.value(f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {value}, i32 {lane}, i32 31)")

    def own_register(self, e: Emitter, number: float, dtype: DType) -> str | None:
        """A mov that LLVM does not see through, for what sums are made of."""
        if dtype is f32:
            bits = struct.unpack("<I", struct.pack("<f", float(np.float32(number))))[0]
            return e.w.value(f'call float asm sideeffect "mov.b32 $0, 0f{bits:08X};", "=f"()')
        if dtype is i32:
            return e.w.value(f'call i32 asm sideeffect "mov.b32 $0, {int(number)};", "=r"()')
        return None

    def check_registers(self, roles: list[tuple[int, int | None]]) -> None:
        """setmaxnreg takes multiples of 8, 24 to 256; who asks for more than the workgroup has waits for ever."""
        together = sum(threads for threads, _ in roles)
        entry = _at_entry(together)
        for _, count in roles:
            if count is not None and not (24 <= count <= 256 and count % 8 == 0):
                raise ProgramError(f"registers {count}: a role has a multiple of 8, from 24 to 256")
        wanted = sum(threads * (entry if count is None else count) for threads, count in roles)
        if wanted > entry * together:
            each = ", ".join(f"{threads} threads with {entry if n is None else n}" for threads, n in roles)
            there = f"{together} threads begin with {entry}, {entry * together} in all"
            raise ProgramError(f"registers: {each} are {wanted} in all; {there}")

    def registers(self, e: Emitter, count: int, threads: int) -> None:
        """setmaxnreg: up or down from what a thread has at the entry."""
        word = "inc" if count > _at_entry(threads) else "dec"
        name = f"llvm.nvvm.setmaxnreg.{word}.sync.aligned.u32"
        e.w.declare(f"void @{name}(i32)")
        e.w.line(f"call void @{name}(i32 {count})")

    # -- barriers -------------------------------------------------------------------------------------------

    def begin(self, e: Emitter, barriers: list[tuple[int, int]]) -> None:
        """Thread 0 makes barriers known to the copy engine; everybody waits for it."""
        if not barriers:
            return
        w = e.w
        first = w.value(f"icmp eq i32 {self.thread(e)}, 0")
        with w.when(first):
            for offset, arrivals in barriers:
                address = w.value(f"add i32 {e.shared}, {offset}")
                w.assembly("mbarrier.init.shared::cta.b64 [$0], $1;", "r,r", (f"i32 {address}", f"i32 {arrivals}"))
            if "sm_90" in e.machine.features:
                w.assembly("fence.mbarrier_init.release.cluster;")
        if e.cluster > 1:
            w.assembly("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;")
            return
        w.declare("void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")
        w.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    def after_the_launch_before(self, e: Emitter, lets_in: bool) -> None:
        """griddepcontrol: every thread waits before it touches memory; then the next grid may come up to here, or, as
        the machine does by itself, when a workgroup ends.

        In this order: when the next grid is let in, all before this one have ended, and it waits for this one alone. A
        workgroup lets it in with the first thread that says so.
        """
        e.w.assembly("griddepcontrol.wait;" + "\ngriddepcontrol.launch_dependents;" * lets_in)

    def meet(self, e: Emitter, barrier: str, threads: int) -> None:
        """bar.sync with a count; number 0 is also that of the beginning."""
        e.w.assembly("bar.sync $0, $1;", "r,r", (f"i32 {barrier}", f"i32 {threads}"))

    def together(self, e: Emitter) -> None:
        """bar.warp.sync."""
        e.w.declare("void @llvm.nvvm.bar.warp.sync(i32)")
        e.w.line("call void @llvm.nvvm.bar.warp.sync(i32 -1)")

    def arrive(self, e: Emitter, address: str, everywhere: bool) -> None:
        """mbarrier.arrive; at other blocks the plain form, since `.release.cluster` waits for all memory each time."""
        if everywhere:
            lines = [
                f"mapa.shared::cluster.u32 there, $0, {rank};\nmbarrier.arrive.shared::cluster.b64 _, [there];"
                for rank in range(e.cluster)
            ]
            e.w.assembly("\n".join(["{", ".reg .b32 there;", *lines, "}"]), "r", (f"i32 {address}",))
            return
        e.w.assembly("mbarrier.arrive.shared::cta.b64 _, [$0];", "r", (f"i32 {address}",))

    def expect(self, e: Emitter, address: str, count: int) -> None:
        """mbarrier.expect_tx."""
        text = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;"
        e.w.assembly(text, "r,r", (f"i32 {address}", f"i32 {count}"))

    def kept(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """A store that never happens: without a use behind the loop, the assembler gives registers that wgmma.mma_async
        takes in every round to something else after the first (seen with 13.0: the second round multiplied that)."""
        words = [text for v in fragments for _, text in mma.words(e, v)]
        stores = [f"@p st.shared.b32 [z], ${i};" for i in range(len(words))]
        never = [".reg .pred p;", ".reg .b32 z;", "mov.u32 z, %nctaid.z;", "setp.eq.u32 p, z, 0;"]
        text = "\n".join(["{", *never, *stores, "}"])
        e.w.assembly(text, ",".join(["r"] * len(words)), tuple(f"i32 {word}" for word in words))

    def computed(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """No instruction that takes them all: LLVM puts off what nobody asks for. Small ones as products take them."""
        wide = [f"float {e.get(v, i)}" for v in fragments if v.type.dtype is f32 for i in range(e.values(v))]
        packed = [f"{kind} {text}" for v in fragments if v.type.dtype is not f32 for kind, text in mma.words(e, v)]
        e.w.assembly("", ",".join(["f"] * len(wide) + ["r"] * len(packed)), (*wide, *packed))

    def await_(self, e: Emitter, address: str, parity: str) -> None:
        """mbarrier.try_wait until it says yes."""
        word = "try" if "sm_90" in e.machine.features else "test"
        text = (
            f"{{\n.reg .pred p;\nAGAIN: mbarrier.{word}_wait.parity.shared::cta.b64 p, [$0], $1;\n"
            "@p bra DONE;\nbra AGAIN;\nDONE:\n}"
        )
        e.w.assembly(text, "r,r", (f"i32 {address}", f"i32 {parity}"))

    def fence(self, e: Emitter) -> None:
        """Generic stores before, the asynchronous proxy after."""
        e.w.assembly("fence.proxy.async.shared::cta;")

    # -- copies ---------------------------------------------------------------------------------------------

    def copy_in(self, e: Emitter, op: Op) -> None:
        """TMA to shared memory, tiled or im2col."""
        tensor_map, found = boxes(op, loads=True)
        name = parameter(e, op, True, tensor_map)
        signal = e.barrier_address(op, 2, "signal")
        size = op.operands[1].type.dtype.numpy.itemsize
        for box in found:
            to = e.address(op.operands[1], box.place, size)
            rank = len(box.coordinates)
            places = ", ".join(f"${3 + i}" for i in range(rank))
            form = "im2col" if box.offsets else "tile"
            taps = ", {" + ", ".join(f"${3 + rank + i}" for i in range(len(box.offsets))) + "}" if box.offsets else ""
            shared = bool(op.attrs.get("multicast"))
            word, mask = (".multicast::cluster", f", ${3 + rank + len(box.offsets)}") if shared else ("", "")
            text = (
                f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{form}.mbarrier::complete_tx::bytes{word} "
                f"[$0], [$1, {{{places}}}], [$2]{taps}{mask};"
            )
            operands = [f"i32 {to}", f"ptr {name}", f"i32 {signal}", *self._coordinates(e, box)]
            operands += [f"i16 {e.w.value(f'trunc i32 {e.w.number(o)} to i16')}" for o in box.offsets]
            operands += [f"i16 {(1 << e.cluster) - 1}"] if shared else []
            marks = ",".join(["r", "l", "r", *["r"] * rank, *["h"] * (len(box.offsets) + shared)])
            e.w.assembly(text, marks, tuple(operands))

    def copy_lanes(self, e: Emitter, op: Op) -> None:
        """cp.async."""
        cp_async.copy(e, op)

    def land(self, e: Emitter, address: str) -> None:
        """cp.async.mbarrier.arrive: it adds the arrival that it waits for, so that barriers count waves."""
        e.w.assembly("cp.async.mbarrier.arrive.shared::cta.b64 [$0];", "r", (f"i32 {address}",))

    def copy_out(self, e: Emitter, op: Op) -> None:
        """TMA from shared memory."""
        tensor_map, found = boxes(op, loads=False)
        name = parameter(e, op, False, tensor_map)
        size = op.operands[0].type.dtype.numpy.itemsize
        for box in found:
            source = e.address(op.operands[0], box.place, size)
            rank = len(box.coordinates)
            places = ", ".join(f"${2 + i}" for i in range(rank))
            text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [$0, {{{places}}}], [$1];"
            operands = (f"ptr {name}", f"i32 {source}", *self._coordinates(e, box))
            e.w.assembly(text, ",".join(["l", "r", *["r"] * rank]), operands)

    def _coordinates(self, e: Emitter, box: TensorBox) -> list[str]:
        return [f"i32 {e.w.number(c)}" for c in box.coordinates]

    def seal(self, e: Emitter) -> None:
        """The stores since the last one are a group."""
        e.w.assembly("cp.async.bulk.commit_group;")

    def drain(self, e: Emitter, pending: int) -> None:
        """Groups but the last few have read what they store."""
        e.w.assembly(f"cp.async.bulk.wait_group.read {pending};")

    def load(self, e: Emitter, op: Op) -> bool:
        """ldmatrix, where the fragment lies so in shared memory."""
        return eights.load(e, op)

    def store(self, e: Emitter, op: Op) -> bool:
        """stmatrix, where the fragment lies so in shared memory, and the machine has it."""
        return "sm_90" in e.machine.features and eights.store(e, op)

    def load_streaming(self, e: Emitter, address: str, words: int) -> list[str]:
        """ld.global.cs, in order with all else that touches memory."""
        given = (f"ptr addrspace(1) {address}",)
        if words == 1:
            return [e.w.assembly("ld.global.cs.b32 $0, [$1];", "=r,l", given, "i32")]
        kind, places = e.w.together(["i32"] * words), ", ".join(f"${n}" for n in range(words))
        text = f"ld.global.cs.v{words}.b32 {{{places}}}, [${words}];"
        found = e.w.assembly(text, "=r," * words + "l", given, kind)
        return [e.w.value(f"extractvalue {kind} {found}, {n}") for n in range(words)]

    # -- arithmetic -----------------------------------------------------------------------------------------

    def multiply(self, e: Emitter, op: Op) -> None:
        """The atom's instruction."""
        atom = e.machine.multiply_atom(op.attrs["atom"])
        if atom.name.startswith("wgmma."):
            wgmma.multiply(e, op, atom)
        elif atom.name.startswith("fma."):
            fma.multiply(e, op, atom)
        else:
            mma.multiply(e, op, atom)

    def settle(self, e: Emitter, pending: int, sums: tuple[Value, ...]) -> None:
        """wgmma.wait_group."""
        wgmma.settle(e, pending, sums)

    def whole(self, e: Emitter, word: str) -> str:
        """A copy that LLVM does not look into."""
        return e.w.value(f'call i32 asm "mov.b32 $0, $1;", "=r,r"(i32 {word})')

    def any(self, e: Emitter, test: str) -> str:
        """vote.sync.any."""
        e.w.declare("i1 @llvm.nvvm.vote.any.sync(i32, i1)")
        return e.w.value(f"call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 {test})")

    def function(self, e: Emitter, name: str, values: list[str], accuracy: Accuracy) -> str | None:
        """By approximations: see `functions`."""
        return functions.function(e, name, values, accuracy)

    def rounds_pairs(self, e: Emitter, kind: DType) -> bool:
        """Those of 16 bits, and e4m3 where the machine has it."""
        return rounding.rounds_pairs(e.machine, kind)

    def pair(self, e: Emitter, low: str, high: str, kind: DType) -> str:
        """cvt.rn.bf16x2.f32 and its like."""
        return rounding.pair(e, low, high, kind)

    def pair_of_bytes(self, e: Emitter, low: str, high: str) -> str:
        """By bits of bf16, and one instruction for two."""
        return rounding.pair_of_bytes(e, low, high)
