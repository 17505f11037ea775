"""NVIDIA's instructions for the operations of the loop level, as LLVM intrinsics or as PTX text."""

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
"""Threads that a multiprocessor should have at least, to hide the latency of memory."""
FEWEST, OTHERS = 8, 24
"""Registers of a thread beside those of its fma operands, for addresses and conditions: the fewest, and as many as it
should have if there are too few registers for THREADS threads."""
# thread 0 prefetches a tensor map before it is used
_LOOK_UP = "{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; @p prefetch.tensormap [$0]; }"
_SPECIAL = "llvm.nvvm.read.ptx.sreg"


def _registers_at_entry(threads: int) -> int:
    """Return the number of registers of each thread when a kernel begins, a multiple of 8. `threads` is the number of
    threads of a workgroup.
    """
    return min(255, REGISTERS // threads) // 8 * 8


def _min_workgroups(e: Emitter) -> str:
    """Return the text of the LLVM attribute `nvvm.minctasm`: the number of workgroups that a multiprocessor should have
    room for at a time. The number is 1 unless `e.waits_for_memory`. In that case, it is as large as threads, tasks and
    the registers of live values allow.
    """
    tasks_per_core = -(-e.tasks.value // (e.machine.limits.cores or 1)) if isinstance(e.tasks, Const) else THREADS
    live_registers = registers_of_products(e.program)
    is_crowded = live_registers > REGISTERS // THREADS - FEWEST
    room = REGISTERS // (e.threads * (live_registers + OTHERS)) if is_crowded else THREADS
    count = max(1, min(THREADS // e.threads, tasks_per_core, room)) if e.waits_for_memory else 1
    return f'"nvvm.minctasm"="{count}"'


class Ptx:
    """Emits PTX for the operations of one kernel."""

    wave_group = 4

    def module(self, e: Emitter) -> str:
        """Return the text of the LLVM module: the kernel function around the lines that `e` has emitted. Its parameters
        are, in order: pointers of tensors, open sizes, the pointer of counters (if there are any), and tensor maps.
        """
        pointers = [f"ptr addrspace(1) %t{i}" for i in range(len(e.program.args))]
        pointers += [f"i32 %n{i}" for i in range(len(e.sizes))]
        if e.counted:
            pointers.append("ptr addrspace(1) %counters")
        maps = [f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %m{i}' for i in range(len(e.parameters))]
        prefetches = [f'  call void asm sideeffect "{_LOOK_UP}", "l"(ptr %m{i})' for i in range(len(e.parameters))]
        return "\n".join(
            [
                'target triple = "nvptx64-nvidia-cuda"',
                f"@shared = external addrspace(3) global [0 x i8], align {ALIGNMENT}",
                *e.w.declared,
                f"define ptx_kernel void @{e.program.name}({', '.join([*pointers, *maps])}) #0 {{",
                "entry:",
                *e.w.slots,
                *prefetches,
                e.w.text(),
                "  ret void",
                "}",
                f'attributes #0 = {{ nounwind convergent "nvvm.maxntid"="{e.threads}" {_min_workgroups(e)} }}',
                "",
            ]
        )

    # -- who ------------------------------------------------------------------------------------------------

    def _special_register(self, e: Emitter, name: str) -> str:
        """Emit the read of a special register of PTX, and return it, an i32. `name` is LLVM's name of the register,
        such as "tid.x".
        """
        e.w.declare(f"i32 @{_SPECIAL}.{name}()")
        return e.w.value(f"call i32 @{_SPECIAL}.{name}()")

    def thread(self, e: Emitter) -> str:
        """Emit the read of the thread's number in its workgroup (%tid.x), and return it, an i32."""
        return self._special_register(e, "tid.x")

    def worker(self, e: Emitter) -> str:
        """Emit the read of the workgroup's number in the grid (%ctaid.x), and return it, an i32."""
        return self._special_register(e, "ctaid.x")

    def workers(self, e: Emitter) -> str:
        """Emit the read of the number of workgroups in the grid (%nctaid.x), and return it, an i32."""
        return self._special_register(e, "nctaid.x")

    def rank(self, e: Emitter) -> str:
        """Emit the read of the workgroup's number in its cluster (%cluster_ctarank), and return it, an i32."""
        return self._special_register(e, "cluster.ctarank")

    def sync_cluster_at_end(self, e: Emitter) -> None:
        """Emit a barrier for all threads of the cluster (barrier.cluster). The form without `.aligned` is used, because
        the threads come from different branches.
        """
        e.w.assembly("barrier.cluster.arrive;\nbarrier.cluster.wait;")

    def uniform(self, e: Emitter, value: str) -> str:
        """Emit a shuffle that gives all lanes the i32 `value` of lane 0, and return the result. ptxas then knows that
        it is equal in all lanes.
        """
        return self.from_lane(e, value, "0")

    def from_lane(self, e: Emitter, value: str, lane: str) -> str:
        """Emit a shuffle (shfl.sync.idx): return the i32 `value` of the lane with the number `lane`, an LLVM value."""
        e.w.declare("i32 @llvm.nvvm.shfl.sync.idx.i32(i32, i32, i32, i32)")
        return e.w.value(f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {value}, i32 {lane}, i32 31)")

    def fresh_register(self, e: Emitter, number: float, dtype: DType) -> str | None:
        """Emit a mov of the constant `number` to a new register that LLVM does not optimise, and return the register.
        Emit nothing and return None if `dtype` is neither f32 nor i32.
        """
        if dtype is f32:
            bits = struct.unpack("<I", struct.pack("<f", float(np.float32(number))))[0]
            return e.w.value(f'call float asm sideeffect "mov.b32 $0, 0f{bits:08X};", "=f"()')
        if dtype is i32:
            return e.w.value(f'call i32 asm sideeffect "mov.b32 $0, {int(number)};", "=r"()')
        return None

    def check_registers(self, roles: list[tuple[int, int | None]]) -> None:
        """Raise ProgramError unless the roles of a workgroup can have the registers that they request. `roles` is
        [(number of threads, registers of each thread)], where None is the number at the kernel's entry. setmaxnreg
        takes multiples of 8 from 24 to 256. If all requests together exceeded the registers of the workgroup,
        setmaxnreg would wait for ever.
        """
        all_threads = sum(threads for threads, _ in roles)
        entry = _registers_at_entry(all_threads)
        for _, count in roles:
            if count is not None and not (24 <= count <= 256 and count % 8 == 0):
                raise ProgramError(f"registers {count}: a role has a multiple of 8, from 24 to 256")
        wanted = sum(threads * (entry if count is None else count) for threads, count in roles)
        if wanted > entry * all_threads:
            requests = ", ".join(f"{threads} threads with {entry if n is None else n}" for threads, n in roles)
            available = f"{all_threads} threads begin with {entry}, {entry * all_threads} in all"
            raise ProgramError(f"registers: {requests} are {wanted} in all; {available}")

    def registers(self, e: Emitter, count: int, threads: int) -> None:
        """Emit setmaxnreg, which sets the number of registers of each thread of the current role to `count`. `threads`
        is the number of threads of the workgroup; it determines the number at the kernel's entry, and so whether
        `count` is an increase or a decrease.
        """
        word = "inc" if count > _registers_at_entry(threads) else "dec"
        name = f"llvm.nvvm.setmaxnreg.{word}.sync.aligned.u32"
        e.w.declare(f"void @{name}(i32)")
        e.w.line(f"call void @{name}(i32 {count})")

    # -- barriers -------------------------------------------------------------------------------------------

    def begin(self, e: Emitter, barriers: list[tuple[int, int]]) -> None:
        """Emit the start of the kernel. Thread 0 initialises `barriers`, a list of (offset in shared memory, number of
        arrivals), and makes them visible to TMA. Then all threads of the workgroup, or of its cluster, wait until this
        is done. Emit nothing if there are no barriers.
        """
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

    def wait_for_previous_launch(self, e: Emitter, allows_next: bool) -> None:
        """Emit griddepcontrol.wait: every thread waits until the previous grid has finished. If `allows_next`, the next
        grid may then start, and runs up to its own wait. Otherwise it starts when this grid has finished.

        The order matters. When the next grid starts, all grids before this one have finished, so that the next grid
        only has to wait for this one.
        """
        e.w.assembly("griddepcontrol.wait;" + "\ngriddepcontrol.launch_dependents;" * allows_next)

    def meet(self, e: Emitter, barrier: str, threads: int) -> None:
        """Emit a barrier for `threads` threads of the workgroup (bar.sync). `barrier` is the number of the hardware
        barrier, an LLVM value. Number 0 is also used by the start of the kernel.
        """
        e.w.assembly("bar.sync $0, $1;", "r,r", (f"i32 {barrier}", f"i32 {threads}"))

    def sync_lanes(self, e: Emitter) -> None:
        """Emit a barrier for the lanes of the wave (bar.warp.sync)."""
        e.w.declare("void @llvm.nvvm.bar.warp.sync(i32)")
        e.w.line("call void @llvm.nvvm.bar.warp.sync(i32 -1)")

    def arrive(self, e: Emitter, address: str, everywhere: bool) -> None:
        """Emit one arrival at the mbarrier at `address`. If `everywhere`, emit an arrival at this mbarrier in each
        workgroup of the cluster. Remote arrivals use the plain form of mbarrier.arrive, because `.release.cluster`
        would wait for all memory accesses.
        """
        if everywhere:
            lines = [
                f"mapa.shared::cluster.u32 there, $0, {rank};\nmbarrier.arrive.shared::cluster.b64 _, [there];"
                for rank in range(e.cluster)
            ]
            e.w.assembly("\n".join(["{", ".reg .b32 there;", *lines, "}"]), "r", (f"i32 {address}",))
            return
        e.w.assembly("mbarrier.arrive.shared::cta.b64 _, [$0];", "r", (f"i32 {address}",))

    def expect(self, e: Emitter, address: str, count: int) -> None:
        """Emit mbarrier.expect_tx: the current phase of the mbarrier at `address` also waits for `count` bytes of TMA
        copies. This is not an arrival.
        """
        text = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;"
        e.w.assembly(text, "r,r", (f"i32 {address}", f"i32 {count}"))

    def keep_registers(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """Emit a store of the registers of `fragments` that is never executed. It keeps them allocated up to this
        point.

        Without a use after the loop, ptxas reuses registers that wgmma.mma_async reads in every iteration after the
        first one (seen with 13.0: the second iteration multiplied other values).
        """
        words = [text for v in fragments for _, text in mma.words(e, v)]
        stores = [f"@p st.shared.b32 [z], ${i};" for i in range(len(words))]
        never = [".reg .pred p;", ".reg .b32 z;", "mov.u32 z, %nctaid.z;", "setp.eq.u32 p, z, 0;"]
        text = "\n".join(["{", *never, *stores, "}"])
        e.w.assembly(text, ",".join(["r"] * len(words)), tuple(f"i32 {word}" for word in words))

    def force_computed(self, e: Emitter, fragments: Sequence[Value]) -> None:
        """Emit empty inline assembly that takes the values of `fragments`, so that LLVM computes them before the code
        that follows. Elements of fewer than 32 bits are packed into words, as operands of MMAs are.
        """
        floats = [f"float {e.get(v, i)}" for v in fragments if v.type.dtype is f32 for i in range(e.values(v))]
        packed = [f"{kind} {text}" for v in fragments if v.type.dtype is not f32 for kind, text in mma.words(e, v)]
        e.w.assembly("", ",".join(["f"] * len(floats) + ["r"] * len(packed)), (*floats, *packed))

    def await_(self, e: Emitter, address: str, parity: str) -> None:
        """Emit the loop that waits until the mbarrier at `address` has completed its phase of the parity `parity`, 0 or
        1 (an LLVM value). The loop uses mbarrier.try_wait, or mbarrier.test_wait on machines before Hopper.
        """
        word = "try" if "sm_90" in e.machine.features else "test"
        text = (
            f"{{\n.reg .pred p;\nAGAIN: mbarrier.{word}_wait.parity.shared::cta.b64 p, [$0], $1;\n"
            "@p bra DONE;\nbra AGAIN;\nDONE:\n}"
        )
        e.w.assembly(text, "r,r", (f"i32 {address}", f"i32 {parity}"))

    def fence(self, e: Emitter) -> None:
        """Emit fence.proxy.async. After it, earlier stores of this lane to shared memory are visible to asynchronous
        copies and multiplications.
        """
        e.w.assembly("fence.proxy.async.shared::cta;")

    # -- copies ---------------------------------------------------------------------------------------------

    def copy_in(self, e: Emitter, op: Op) -> None:
        """Emit the TMA copies of `op` from global to shared memory, tiled or im2col, one instruction for each box. The
        copies complete on the mbarrier of `op`, its third operand. If `op` has the attribute `multicast`, all
        workgroups of the cluster receive the data.
        """
        tensor_map, its_boxes = boxes(op, loads=True)
        name = parameter(e, op, True, tensor_map)
        signal = e.barrier_address(op, 2, "signal")
        size = op.operands[1].type.dtype.numpy.itemsize
        for box in its_boxes:
            target = e.address(op.operands[1], box.place, size)
            rank = len(box.coordinates)
            operand_names = ", ".join(f"${3 + i}" for i in range(rank))
            form = "im2col" if box.offsets else "tile"
            taps = ", {" + ", ".join(f"${3 + rank + i}" for i in range(len(box.offsets))) + "}" if box.offsets else ""
            shared = bool(op.attrs.get("multicast"))
            word, mask = (".multicast::cluster", f", ${3 + rank + len(box.offsets)}") if shared else ("", "")
            text = (
                f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{form}.mbarrier::complete_tx::bytes{word} "
                f"[$0], [$1, {{{operand_names}}}], [$2]{taps}{mask};"
            )
            operands = [f"i32 {target}", f"ptr {name}", f"i32 {signal}", *self._coordinates(e, box)]
            operands += [f"i16 {e.w.value(f'trunc i32 {e.w.number(o)} to i16')}" for o in box.offsets]
            operands += [f"i16 {(1 << e.cluster) - 1}"] if shared else []
            marks = ",".join(["r", "l", "r", *["r"] * rank, *["h"] * (len(box.offsets) + shared)])
            e.w.assembly(text, marks, tuple(operands))

    def copy_lanes(self, e: Emitter, op: Op) -> None:
        """Emit the cp.async of `op` from global to shared memory. Each lane copies its own elements."""
        cp_async.copy(e, op)

    def land(self, e: Emitter, address: str) -> None:
        """Emit cp.async.mbarrier.arrive: the mbarrier at `address` also waits for the cp.async copies that this lane
        has issued. The instruction first increments the pending count for the arrival that it makes later, so that the
        mbarrier's expected number of arrivals does not change.
        """
        e.w.assembly("cp.async.mbarrier.arrive.shared::cta.b64 [$0];", "r", (f"i32 {address}",))

    def copy_out(self, e: Emitter, op: Op) -> None:
        """Emit the TMA copies of `op` from shared to global memory, one instruction for each box."""
        tensor_map, its_boxes = boxes(op, loads=False)
        name = parameter(e, op, False, tensor_map)
        size = op.operands[0].type.dtype.numpy.itemsize
        for box in its_boxes:
            source = e.address(op.operands[0], box.place, size)
            rank = len(box.coordinates)
            operand_names = ", ".join(f"${2 + i}" for i in range(rank))
            text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [$0, {{{operand_names}}}], [$1];"
            operands = (f"ptr {name}", f"i32 {source}", *self._coordinates(e, box))
            e.w.assembly(text, ",".join(["l", "r", *["r"] * rank]), operands)

    def _coordinates(self, e: Emitter, box: TensorBox) -> list[str]:
        """Emit the coordinates of a TMA box, and return them as operands of an instruction, such as "i32 %x"."""
        return [f"i32 {e.w.number(c)}" for c in box.coordinates]

    def seal(self, e: Emitter) -> None:
        """Emit the end of the current group of TMA stores (cp.async.bulk.commit_group)."""
        e.w.assembly("cp.async.bulk.commit_group;")

    def drain(self, e: Emitter, pending: int) -> None:
        """Emit the wait until at most `pending` groups of TMA stores still read shared memory
        (cp.async.bulk.wait_group.read).
        """
        e.w.assembly(f"cp.async.bulk.wait_group.read {pending};")

    def load(self, e: Emitter, op: Op) -> bool:
        """Emit ldmatrix for the load `op` of a fragment, and return True. Emit nothing and return False if ldmatrix
        cannot do this load (see `eights.load`).
        """
        return eights.load(e, op)

    def store(self, e: Emitter, op: Op) -> bool:
        """Emit stmatrix for the store `op` of a fragment, and return True. Emit nothing and return False if the machine
        has no stmatrix, or if stmatrix cannot do this store (see `eights.store`).
        """
        return "sm_90" in e.machine.features and eights.store(e, op)

    def load_streaming(self, e: Emitter, address: str, words: int) -> list[str]:
        """Emit a load of `words` words of 32 bits (1, 2 or 4) from global memory that caches evict first
        (ld.global.cs). Return the words as LLVM values of type i32. `address` is a pointer that is aligned to the
        loaded bytes. The load keeps its order with other memory accesses.
        """
        operands = (f"ptr addrspace(1) {address}",)
        if words == 1:
            return [e.w.assembly("ld.global.cs.b32 $0, [$1];", "=r,l", operands, "i32")]
        kind, register_names = e.w.struct_type(["i32"] * words), ", ".join(f"${n}" for n in range(words))
        text = f"ld.global.cs.v{words}.b32 {{{register_names}}}, [${words}];"
        result = e.w.assembly(text, "=r," * words + "l", operands, kind)
        return [e.w.value(f"extractvalue {kind} {result}, {n}") for n in range(words)]

    # -- arithmetic -----------------------------------------------------------------------------------------

    def multiply(self, e: Emitter, op: Op) -> None:
        """Emit C += A * B for the atom operation `op`, as wgmma, fma or mma.sync. The name of the atom says which."""
        atom = e.machine.multiply_atom(op.attrs["atom"])
        if atom.name.startswith("wgmma."):
            wgmma.multiply(e, op, atom)
        elif atom.name.startswith("fma."):
            fma.multiply(e, op, atom)
        else:
            mma.multiply(e, op, atom)

    def wait_products(self, e: Emitter, pending: int, sums: tuple[Value, ...]) -> None:
        """Emit the wait until at most `pending` groups of wgmma are in flight (wgmma.wait_group). `sums` are the
        accumulators that may be used after the wait.
        """
        wgmma.wait_products(e, pending, sums)

    def as_one_word(self, e: Emitter, word: str) -> str:
        """Emit a copy of the i32 `word` that LLVM does not optimise, and return the copy. It therefore stays in one
        register.
        """
        return e.w.value(f'call i32 asm "mov.b32 $0, $1;", "=r,r"(i32 {word})')

    def any_lane(self, e: Emitter, test: str) -> str:
        """Emit a vote (vote.sync.any), and return an i1 that is equal in all lanes: true if the i1 `test` is true in at
        least one lane of the wave.
        """
        e.w.declare("i1 @llvm.nvvm.vote.any.sync(i32, i1)")
        return e.w.value(f"call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 {test})")

    def function(self, e: Emitter, name: str, values: list[str], accuracy: Accuracy) -> str | None:
        """Emit the f32 function `name` of the LLVM values `values` with approximate instructions that reach `accuracy`,
        and return the result. Emit nothing and return None if there is no such code for this function (see
        `functions`).
        """
        return functions.function(e, name, values, accuracy)

    def rounds_pairs(self, e: Emitter, kind: DType) -> bool:
        """True if one instruction rounds two f32 to floats of the type `kind`: bf16, f16, and e4m3 on Hopper. Emit
        nothing.
        """
        return rounding.rounds_pairs(e.machine, kind)

    def pair(self, e: Emitter, low: str, high: str, kind: DType) -> str:
        """Emit the rounding of the f32 values `low` and `high` to the type `kind` by one instruction, such as
        cvt.rn.bf16x2.f32. Return both as an LLVM vector of two elements, `low` first.
        """
        return rounding.pair(e, low, high, kind)

    def pair_of_bytes(self, e: Emitter, low: str, high: str) -> str:
        """Emit the conversion of the i8 values `low` and `high` to bf16, with bit operations and one fma. Return both
        as an LLVM vector of two elements, `low` first.
        """
        return rounding.pair_of_bytes(e, low, high)
