"""The function that TVM-FFI calls: `int __tvm_ffi_NAME(void *, const TVMFFIAny *args, int32_t count, TVMFFIAny *)`.

The arguments are the kernel's, outputs too: tensors in DLPack's form, and numbers. A worker pool may follow, as an
opaque pointer to a `tw_pool`. The function checks them, solves the open sizes from the tensors' shapes, takes memory
from the system's `malloc`, and calls `NAME_bind` and `NAME`. It returns 0, or -1 after it has set TVM-FFI's error: a
`TypeError`, `ValueError`, `MemoryError` or `RuntimeError` whose message names the argument and its value.

A TVMFFIAny has 16 bytes: its type at 0, its value at 8. A tensor object has its DLTensor after a head of 24 bytes. A
DLTensor has its memory at 0, the kind of its device at 8, the number of its dimensions at 16, its element type at 20
(code, bits, lanes), a pointer to its extents at 24 and one to its strides at 32 (null: packed), and an offset in bytes
at 40.

The functions of TVM-FFI and of libc that it calls are weak symbols: an object that holds it is linked and loaded
without them too.
"""

from __future__ import annotations

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import linear
from tilewright.codegen.entry.abi import ALIGNMENT, KIND_BITS, ErrorKind
from tilewright.codegen.entry.plan import EntryPlan
from tilewright.codegen.entry.sizes import HostWriter, outside_range, range_text
from tilewright.codegen.entry.texts import TextConstants
from tilewright.codegen.text import element
from tilewright.errors import ArgumentError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import ALL, DType, index
from tilewright.runtime.dlpack import element_word

PREFIX = "__tvm_ffi_"
"""Comes before a kernel's name in the symbol that TVM-FFI looks for."""
NONE, INT, BOOL, FLOAT, OPAQUE, TENSOR_POINTER, TENSOR = 0, 1, 2, 3, 4, 7, 70
"""The types of values that the function tells apart, as TVM-FFI numbers them."""
HOST = 1
"""The host's memory, as DLPack numbers kinds of devices."""

_HELPERS = """declare extern_weak void @TVMFFIErrorSetRaisedFromCStrParts(ptr, ptr, i32)
declare extern_weak ptr @malloc(i64)
declare extern_weak void @free(ptr)
@NAME.raise = internal global ptr @TVMFFIErrorSetRaisedFromCStrParts
@NAME.malloc = internal global ptr @malloc
@NAME.free = internal global ptr @free
define internal i32 @NAME.raised(ptr %kind, ptr %before, ptr %value, ptr %after) nounwind noinline {
entry:
  %parts = alloca [3 x ptr], align 8
  %second = getelementptr i8, ptr %parts, i64 8
  %third = getelementptr i8, ptr %parts, i64 16
  store ptr %before, ptr %parts
  store ptr %value, ptr %second
  store ptr %after, ptr %third
  %raise = load volatile ptr, ptr @NAME.raise
  %absent = icmp eq ptr %raise, null
  br i1 %absent, label %out, label %set
set:
  call void %raise(ptr %kind, ptr %parts, i32 3)
  br label %out
out:
  ret i32 -1
}
define internal i32 @NAME.raised_number(ptr %kind, ptr %before, i64 %number, ptr %after) nounwind noinline {
entry:
  %digits = alloca [24 x i8], align 8
  %end = getelementptr i8, ptr %digits, i64 23
  store i8 0, ptr %end
  %negative = icmp slt i64 %number, 0
  %minus = sub i64 0, %number
  %size = select i1 %negative, i64 %minus, i64 %number
  br label %digit
digit:
  %left = phi i64 [%size, %entry], [%rest, %digit]
  %at = phi i64 [23, %entry], [%before_at, %digit]
  %before_at = sub i64 %at, 1
  %rest = udiv i64 %left, 10
  %last = urem i64 %left, 10
  %code = add i64 %last, 48
  %byte = trunc i64 %code to i8
  %place = getelementptr i8, ptr %digits, i64 %before_at
  store i8 %byte, ptr %place
  %more = icmp ne i64 %rest, 0
  br i1 %more, label %digit, label %sign
sign:
  %sign_at = sub i64 %before_at, 1
  %sign_place = getelementptr i8, ptr %digits, i64 %sign_at
  store i8 45, ptr %sign_place
  %start = select i1 %negative, ptr %sign_place, ptr %place
  %result = call i32 @NAME.raised(ptr %kind, ptr %before, ptr %start, ptr %after)
  ret i32 %result
}
define internal ptr @NAME.tensor(ptr %any) nounwind {
entry:
  %type = load i32, ptr %any
  %pvalue = getelementptr i8, ptr %any, i64 8
  %value = load ptr, ptr %pvalue
  %inside = getelementptr i8, ptr %value, i64 24
  %is_pointer = icmp eq i32 %type, POINTER_TYPE
  %is_object = icmp eq i32 %type, OBJECT_TYPE
  %of_object = select i1 %is_object, ptr %inside, ptr null
  %tensor = select i1 %is_pointer, ptr %value, ptr %of_object
  ret ptr %tensor
}"""


class PackedFunction:
    """Emits the function `__tvm_ffi_NAME` of a kernel, in TVM-FFI's calling convention (its "packed function")."""

    def __init__(self, plan: EntryPlan):
        self.plan, self.w = plan, HostWriter()
        self.texts = TextConstants(f"{plan.name}.tvm")
        self.args = plan.host.args
        self.solved = self._solved_sizes()

    def text(self) -> str:
        """Emit the whole function `__tvm_ffi_NAME`; return its LLVM text, with its helper functions and string
        constants.

        Also add the intrinsics that it needs to `self.plan.declared`.
        """
        plan, w = self.plan, self.w
        name = plan.name
        self.buffers = w.value(f"alloca [{max(len(self.args), 1)} x ptr], align 8")
        self.numbers = w.value(f"alloca [{max(len(self.args), 1)} x i64], align 8")
        self.sizes = w.value(f"alloca [{max(len(plan.sizes), 1)} x i64], align 8")
        self._count()
        tensors = {arg: self._argument(place, arg) for place, arg in enumerate(self.args)}
        self._load_sizes_from_extents(tensors)
        for arg, tensor in tensors.items():
            if tensor is not None:
                self._extents(arg, tensor)
        self._call(self._pool())
        plan.declared |= w.declared
        helpers = _HELPERS.replace("NAME", name)
        helpers = helpers.replace("POINTER_TYPE", str(TENSOR_POINTER)).replace("OBJECT_TYPE", str(TENSOR))
        head = f"define i32 @{PREFIX}{name}(ptr %handle, ptr %args, i32 %count, ptr %result) nounwind {{"
        return "\n".join([helpers, self._type_name(), *self.texts.lines(), head, "entry:", w.text(), "}"])

    # -- errors -------------------------------------------------------------------------------------------

    def _fail(self, when: str, kind: str, before: str, value: str, after: str = "") -> None:
        """Emit a conditional return: if `when`, the LLVM name of an i1, is set, raise TVM-FFI's error and return -1.

        Otherwise the code emitted next runs. `kind` is the class of the error, such as "ValueError". The message is
        `before`, then `value` (an LLVM operand with its type: a pointer to text, or an i64), then `after`.
        """
        w = self.w
        w.count += 1
        failed, passed = f"fail{w.count}", f"go{w.count}"
        w.line(f"br i1 {when}, label %{failed}, label %{passed}")
        w.label(failed)
        self._raise(f"ptr {self.texts.label(kind)}", before, value, after)
        w.label(passed)

    def _raise(self, kind: str, before: str, value: str, after: str) -> None:
        """Emit code that raises TVM-FFI's error and returns -1.

        `kind` is an LLVM operand with its type: a pointer to the name of the error's class. The message is `before`,
        then `value` (an LLVM operand with its type: a pointer to text, or an i64), then `after`.
        """
        function = "raised_number" if value.startswith("i64") else "raised"
        prefix = f"{self.plan.name}: {before}"
        texts = (self.texts.label(prefix), self.texts.label(after))
        arguments = f"{kind}, ptr {texts[0]}, {value}, ptr {texts[1]}"
        self.w.line(f"ret i32 {self.w.value(f'call i32 @{self.plan.name}.{function}({arguments})')}")

    def _type_name(self) -> str:
        """Return the LLVM text of a function that maps the element type of a DLTensor to its name, such as "f32".

        The element type is an i32 (code, bits, lanes). Error messages need the name.
        """
        lines, known = [], f"ptr {self.texts.label('elements that it does not know')}"
        for number, (word, kind) in enumerate(_WORDS.items()):
            lines.append(f"  %is{number} = icmp eq i32 %word, {word}")
            lines.append(f"  %name{number} = select i1 %is{number}, ptr {self.texts.label(kind.name)}, {known}")
            known = f"ptr %name{number}"
        head = f"define internal ptr @{self.plan.name}.type_name(i32 %word) nounwind {{\nentry:\n"
        return head + "\n".join([*lines, f"  ret {known}\n}}"])

    # -- arguments ----------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Emit a check that raises a TypeError unless the number of arguments is the kernel's, or one more for a thread
        pool.
        """
        w, count = self.w, len(self.args)
        fewer, more = w.value(f"icmp slt i32 %count, {count}"), w.value(f"icmp sgt i32 %count, {count + 1}")
        names = ", ".join(arg.name or "" for arg in self.args)
        number = w.value("sext i32 %count to i64")
        self._fail(
            w.value(f"or i1 {fewer}, {more}"),
            "TypeError",
            f"{count} arguments are needed ({names}), and a pool may follow; given: ",
            f"i64 {number}",
        )

    def _any(self, place: int) -> tuple[str, str]:
        """Emit code that computes the address of argument number `place` of a TVM-FFI call, and loads its type index.

        Return two LLVM names: the pointer to the argument (a TVMFFIAny), and the type index as an i64.
        """
        w = self.w
        address = w.value(f"getelementptr i8, ptr %args, i64 {16 * place}")
        return address, w.value(f"sext i32 {w.value(f'load i32, ptr {address}')} to i64")

    def _argument(self, place: int, arg: Value) -> str | None:
        """Emit the checks of the kernel's argument `arg`, with index `place`, and store the address of its data for the
        call.

        Return the LLVM name of the pointer to its DLTensor. For an argument without dimensions, the caller may pass a
        number instead of a tensor, unless `_takes_number` is false for the element type. Return None if a number is
        allowed: there is no shape to check.
        """
        w, kind = self.w, arg.type
        address, type_index = self._any(place)
        tensor = w.value(f"call ptr @{self.plan.name}.tensor(ptr {address})")
        absent = w.value(f"icmp eq ptr {tensor}, null")
        slot = w.value(f"getelementptr i8, ptr {self.buffers}, i64 {8 * place}")
        if kind.shape or not _takes_number(kind.dtype):
            self._fail(
                absent,
                "TypeError",
                f"argument {arg.name} has TVM-FFI's type ",
                f"i64 {type_index}",
                f"; it must be a tensor of {kind.dtype}",
            )
            w.line(f"store ptr {self._tensor(tensor, arg)}, ptr {slot}")
            return tensor
        w.count += 1
        number, is_tensor, done = (f"{what}{w.count}" for what in ("number", "tensor", "given"))
        w.line(f"br i1 {absent}, label %{number}, label %{is_tensor}")
        w.label(number)
        w.line(f"store ptr {self._number(place, arg, address, type_index)}, ptr {slot}")
        w.line(f"br label %{done}")
        w.label(is_tensor)
        w.line(f"store ptr {self._tensor(tensor, arg)}, ptr {slot}")
        w.line(f"br label %{done}")
        w.label(done)
        return None

    def _tensor(self, tensor: str, arg: Value) -> str:
        """Emit checks that the DLTensor `tensor`, an LLVM pointer, is on the CPU and fits the kernel's argument `arg`.

        Element type and rank must be the argument's; extents are not checked here. Return the LLVM name of the pointer
        to the first element.
        """
        w, kind = self.w, arg.type

        def field(offset: int, form: str) -> str:
            """Emit a load of the DLTensor's field at the byte offset `offset`, of LLVM type `form`; return the LLVM
            name of its value.
            """
            return w.value(f"load {form}, ptr {w.value(f'getelementptr i8, ptr {tensor}, i64 {offset}')}")

        device = w.value(f"sext i32 {field(8, 'i32')} to i64")
        self._fail(
            w.value(f"icmp ne i64 {device}, {HOST}"),
            "ValueError",
            f"argument {arg.name} lies on a device of DLPack's kind ",
            f"i64 {device}",
            f"; this kernel is for the CPU ({HOST}): copy it there",
        )
        word = field(20, "i32")
        named = w.value(f"call ptr @{self.plan.name}.type_name(i32 {word})")
        self._fail(
            w.value(f"icmp ne i32 {word}, {_word(kind.dtype, arg)}"),
            "TypeError",
            f"argument {arg.name} holds ",
            f"ptr {named}",
            f"; it must hold {kind.dtype}",
        )
        rank = w.value(f"sext i32 {field(16, 'i32')} to i64")
        self._fail(
            w.value(f"icmp ne i64 {rank}, {len(kind.shape)}"),
            "ValueError",
            f"argument {arg.name} has ",
            f"i64 {rank}",
            f" dimensions; it must have {len(kind.shape)}",
        )
        return w.value(f"getelementptr i8, ptr {field(0, 'ptr')}, i64 {field(40, 'i64')}")

    def _number(self, place: int, arg: Value, address: str, type_index: str) -> str:
        """Emit the conversion of a number, passed for the kernel's argument `arg` with index `place`, to its element
        type.

        The result is stored; return the LLVM name of the pointer to it. `address` is the LLVM pointer to the passed
        TVMFFIAny, and `type_index` the LLVM name of its TVM-FFI type. The emitted code raises a TypeError for a value
        of another type, and a ValueError for an integer out of range.
        """
        w, kind = self.w, arg.type.dtype
        is_int = w.value(f"icmp eq i64 {type_index}, {INT}")
        is_integer = w.value(f"or i1 {is_int}, {w.value(f'icmp eq i64 {type_index}, {BOOL}')}")
        fits = is_integer
        if kind.is_float:
            fits = w.value(f"or i1 {is_integer}, {w.value(f'icmp eq i64 {type_index}, {FLOAT}')}")
        self._fail(
            w.value(f"xor i1 {fits}, true"),
            "TypeError",
            f"argument {arg.name} has TVM-FFI's type ",
            f"i64 {type_index}",
            f"; it must be a number of type {kind}",
        )
        source = w.value(f"getelementptr i8, ptr {address}, i64 8")
        integer = w.value(f"load i64, ptr {source}")
        slot = w.value(f"getelementptr i8, ptr {self.numbers}, i64 {8 * place}")
        if kind.is_float:
            widened = w.value(f"sitofp i64 {integer} to double")
            value = w.value(f"select i1 {is_integer}, double {widened}, double {w.value(f'load double, ptr {source}')}")
            if kind.bits == 32:
                value = w.value(f"fptrunc double {value} to float")
        else:
            least, most = kind.limits
            low = w.value(f"icmp slt i64 {integer}, {least}")
            high = w.value(f"icmp sgt i64 {integer}, {most}")
            before, after = f"argument {arg.name} is ", f"; {kind} holds {least} to {most}"
            self._fail(w.value(f"or i1 {low}, {high}"), "ValueError", before, f"i64 {integer}", after)
            value = integer if element(kind) == "i64" else w.value(f"trunc i64 {integer} to {element(kind)}")
        w.line(f"store {element(kind)} {value}, ptr {slot}")
        return slot

    # -- sizes --------------------------------------------------------------------------------------------

    def _solved_sizes(self) -> dict[Symbol, tuple[Value, int]]:
        """Return {open size (known only at the call): (argument, dimension)} for all open sizes of the kernel.

        The extent of this dimension determines the size, as 2*N + 1 determines N. Raise ArgumentError if no extent
        determines a size.
        """
        solved = {}
        for size in self.plan.sizes:
            places = ((arg, d) for arg in self.args for d, e in enumerate(arg.type.shape) if _solves(as_expr(e), size))
            place = next(places, None)
            if place is None:
                raise ArgumentError(
                    f"tvm_ffi=True: no shape of {self.plan.name} tells the size {size.name}, and TVM-FFI passes no "
                    "others; give it a value"
                )
            solved[size] = place
        return solved

    def _load_sizes_from_extents(self, tensors: dict[Value, str | None]) -> None:
        """Emit code that computes the open sizes (known only at the call) from the extents of the passed tensors.

        For a dimension 2*N + 1, the extent 7 gives N = 3. The code also stores each size in the array of sizes, and
        raises a ValueError if a size is out of its range. `tensors` is {argument: LLVM name of the pointer to its
        DLTensor}, or None in place of the name if a number may be passed.
        """
        w = self.w
        for place, (size, (arg, dimension)) in enumerate(self.solved.items()):
            tensor = tensors[arg]
            assert tensor is not None
            constant, ((_, factor),) = linear(as_expr(arg.type.shape[dimension]))
            extent = self._entry(tensor, 24, dimension)
            multiple = w.value(f"sub i64 {extent}, {constant}") if constant else extent
            value = w.value(f"sdiv i64 {multiple}, {factor}") if factor != 1 else multiple
            w.symbols[size] = (value, 0)
            w.line(f"store i64 {value}, ptr {w.value(f'getelementptr i8, ptr {self.sizes}, i64 {8 * place}')}")
            before = f"{range_text(size)}; argument {arg.name} says "
            self._fail(outside_range(w, size), "ValueError", before, f"i64 {value}")

    def _entry(self, tensor: str, offset: int, dimension: int) -> str:
        """Emit a load of an extent or stride of the DLTensor `tensor`, an LLVM pointer, along `dimension`.

        `offset` is the byte offset of the array's pointer in the DLTensor: 24 for extents, 32 for strides. Return the
        LLVM name of the i64.
        """
        w = self.w
        array = w.value(f"load ptr, ptr {w.value(f'getelementptr i8, ptr {tensor}, i64 {offset}')}")
        return w.value(f"load i64, ptr {w.value(f'getelementptr i8, ptr {array}, i64 {8 * dimension}')}")

    def _extents(self, arg: Value, tensor: str) -> None:
        """Emit checks that the DLTensor `tensor`, an LLVM pointer, has the extents of the kernel's argument `arg` and
        is contiguous.

        The emitted code raises a ValueError otherwise. Strides are checked only if the tensor states them, and not
        along dimensions of extent 1 or 0.
        """
        w = self.w
        shape = [as_expr(e) for e in arg.type.shape]
        for dimension, e in enumerate(shape):
            extent = self._entry(tensor, 24, dimension)
            self._fail(
                w.value(f"icmp ne i64 {extent}, {w.integer(e)}"),
                "ValueError",
                f"argument {arg.name}: its dimension {dimension} is ",
                f"i64 {extent}",
                f"; it must be {e}",
            )
        if not shape:
            return
        strides = w.value(f"load ptr, ptr {w.value(f'getelementptr i8, ptr {tensor}, i64 32')}")
        w.count += 1
        has_strides, done = f"strides{w.count}", f"packed{w.count}"
        w.line(f"br i1 {w.value(f'icmp eq ptr {strides}, null')}, label %{done}, label %{has_strides}")
        packed = [as_expr(1)]
        for e in reversed(shape[1:]):
            packed.insert(0, packed[0] * e)
        expected = [
            (dimension, w.integer(e), w.integer(n)) for dimension, (e, n) in enumerate(zip(shape, packed, strict=True))
        ]
        w.label(has_strides)
        for dimension, extent, step in expected:
            stride = w.value(f"load i64, ptr {w.value(f'getelementptr i8, ptr {strides}, i64 {8 * dimension}')}")
            several = w.value(f"icmp sgt i64 {extent}, 1")  # the stride of a single element does not count
            self._fail(
                w.value(f"and i1 {several}, {w.value(f'icmp ne i64 {stride}, {step}')}"),
                "ValueError",
                f"argument {arg.name}: the stride of its dimension {dimension} is ",
                f"i64 {stride}",
                "; it must be packed, the last dimension contiguous",
            )
        w.line(f"br label %{done}")
        w.label(done)

    # -- the call -----------------------------------------------------------------------------------------

    def _pool(self) -> str:
        """Emit the check and load of the thread pool, which may be passed after the kernel's arguments.

        Return the LLVM name of its pointer, which is null if none, or TVM-FFI's None, is passed. The emitted code
        raises a TypeError for any other type.
        """
        w, place = self.w, len(self.args)
        before = w.block
        w.line(f"br i1 {w.value(f'icmp eq i32 %count, {place}')}, label %alone, label %pooled")
        w.label("pooled")
        address, type_index = self._any(place)
        is_pool = w.value(f"icmp eq i64 {type_index}, {OPAQUE}")
        fits = w.value(f"or i1 {is_pool}, {w.value(f'icmp eq i64 {type_index}, {NONE}')}")
        self._fail(
            w.value(f"xor i1 {fits}, true"),
            "TypeError",
            "what follows the arguments has TVM-FFI's type ",
            f"i64 {type_index}",
            f"; it must be a pool, an opaque pointer ({OPAQUE}) to a tw_pool",
        )
        pointer = w.value(f"load ptr, ptr {w.value(f'getelementptr i8, ptr {address}, i64 8')}")
        pool = w.value(f"select i1 {is_pool}, ptr {pointer}, ptr null")
        after = w.block
        w.line("br label %alone")
        w.label("alone")
        return w.value(f"phi ptr [null, %{before}], [{pool}, %{after}]")

    def _workers(self, pool: str) -> str:
        """Emit a load of the number of workers of the thread pool `pool`, the LLVM name of a pointer; 1 if the pointer
        is null.

        Return the LLVM name of the i32.
        """
        w, before = self.w, self.w.block
        w.line(f"br i1 {w.value(f'icmp eq ptr {pool}, null')}, label %counted, label %several")
        w.label("several")
        workers = w.value(f"load i32, ptr {w.value(f'getelementptr i8, ptr {pool}, i64 16')}")
        w.line("br label %counted")
        w.label("counted")
        return w.value(f"phi i32 [1, %{before}], [{workers}, %several]")

    def _call(self, pool: str) -> None:
        """Emit the rest of the function: allocate memory, call `NAME_bind` and then `NAME`, free the memory, and return
        0.

        If anything fails, the emitted code raises TVM-FFI's error and returns -1; `NAME` is not called if `NAME_bind`
        fails. `pool` is the LLVM name of the pointer to a thread pool, which may be null.
        """
        w, name = self.w, self.plan.name
        workers = self._workers(pool)
        w.declare("i64 @llvm.smax.i64(i64, i64)")
        kept_bytes = w.value(f"call i64 @{name}_kept_bytes(ptr {self.sizes})")
        workspace_bytes = w.value(f"call i64 @{name}_workspace_bytes(ptr {self.sizes}, i32 {workers})")
        room = w.value(f"add i64 {w.value(f'add i64 {kept_bytes}, {workspace_bytes}')}, {2 * ALIGNMENT}")
        allocate = w.value(f"load volatile ptr, ptr @{name}.malloc")
        no_malloc = w.value(f"icmp eq ptr {allocate}, null")
        self._fail(no_malloc, "MemoryError", "this process has no malloc, and a call needs bytes: ", f"i64 {room}")
        memory = w.value(f"call ptr {allocate}(i64 {room})")
        out_of_memory = w.value(f"icmp eq ptr {memory}, null")
        self._fail(out_of_memory, "MemoryError", "the system has no memory for a call: ", f"i64 {room}", " bytes")
        kept = self._aligned(memory)
        workspace = self._aligned(w.value(f"getelementptr i8, ptr {kept}, i64 {kept_bytes}"))
        lent = f"ptr {self.buffers}, ptr {self.sizes}, ptr {kept}, ptr {workspace}, ptr {pool}"
        bound = w.value(f"call i32 @{name}_bind({lent})")
        before = w.block
        w.line(f"br i1 {w.value(f'icmp eq i32 {bound}, 0')}, label %run, label %ran")
        w.label("run")
        called = w.value(f"call i32 @{name}({lent})")
        w.line("br label %ran")
        w.label("ran")
        code = w.value(f"phi i32 [{bound}, %{before}], [{called}, %run]")
        release = w.value(f"load volatile ptr, ptr @{name}.free")
        w.line(f"call void {release}(ptr {memory})")
        w.line(f"br i1 {w.value(f'icmp eq i32 {code}, 0')}, label %fine, label %refused")
        w.label("refused")
        low = w.value(f"and i32 {code}, {(1 << KIND_BITS) - 1}")
        is_check = w.value(f"icmp eq i32 {low}, {int(ErrorKind.CHECK)}")
        labels = [self.texts.label(kind) for kind in ("RuntimeError", "ValueError")]
        kind = w.value(f"select i1 {is_check}, ptr {labels[0]}, ptr {labels[1]}")
        says = w.value(f"call ptr @{name}_message(i32 {code})")
        self._raise(f"ptr {kind}", "", f"ptr {says}", "")
        w.label("fine")
        w.line("ret i32 0")

    def _aligned(self, pointer: str) -> str:
        """Emit code that rounds `pointer`, an LLVM name, up to a multiple of 64 bytes; return the LLVM name of the
        result.

        The kernel's functions need this alignment.
        """
        w = self.w
        past = w.value(f"add i64 {w.value(f'ptrtoint ptr {pointer} to i64')}, {ALIGNMENT - 1}")
        return w.value(f"inttoptr i64 {w.value(f'and i64 {past}, {-ALIGNMENT}')} to ptr")


def _solves(extent: Expr, size: Symbol) -> bool:
    """True if the expression `extent` is a constant plus a multiple of `size`, such as 2*N + 1 for N.

    The value of `extent` then determines the size.
    """
    _, terms = linear(extent)
    return len(terms) == 1 and terms[0][0] is size


def _takes_number(kind: DType) -> bool:
    """True if a number may be passed instead of a tensor for a scalar argument of element type `kind`.

    This holds for integers, bool, f32 and f64. Narrower floats would need a library for the conversion.
    """
    return kind.bits in (32, 64) or not kind.is_float


def _word(kind: DType, arg: Value) -> int:
    """Return the int by which a DLTensor states the element type `kind`: 32 bits with code, bits and lanes.

    Raise ArgumentError, which names the argument `arg`, if DLPack does not pass this type in whole bytes.
    """
    word = next((w for w, known in _WORDS.items() if known.numpy == kind.numpy), None)
    if word is None:
        raise ArgumentError(f"tvm_ffi=True: argument {arg.name} holds {kind}, which DLPack does not pass as bytes")
    return word


_WORDS = {
    word: kind
    for kind in ALL.values()
    if kind is not index and (kind.bits >= 8 or kind.kind == "bool") and (word := element_word(kind.numpy)) is not None
}
"""The element types that DLPack passes, one to a byte or more, by their word in a DLTensor: code, bits, lanes."""
