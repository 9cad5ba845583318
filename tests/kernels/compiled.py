"""What the compiler makes of the Triton pass for a Hopper: one line per setting, for test_triton.py.

Plain: rows, bytes of the type, asynchronous copies, bytes of stack a thread spills. With `shared`: width, rows, kinds of the hidden
states and the table, bytes of shared memory taken, bytes `gpu.shared` says, for all widths, numbers of groups and ways to keep
what was found, or every so manyth of these (`shared 11`). Compilation stops there where shared memory is known.
"""

import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from spdd.kernels import gpu

POINTERS = {"p_member": "u8", "p_pointer": "i32", "p_row": "i32", "p_item": "i64", "p_crowded": "i32", "p_tile": "i32"}
POINTERS |= {"p_best": "fp32", "p_top": "fp32", "p_total": "fp64", "p_scale": "fp32"}
HOPPER = GPUTarget("cuda", 90, 32)
KINDS = (("bf16", "bf16"), ("fp32", "fp32"), ("bf16", "i8"), ("fp32", "i8"))


def source(rows, setting, hidden, table, width=64, groups=2, keep=True):
    whole, rest = gpu.parts(width)
    constant = {
        "GROUPS": groups, "LANES": triton.next_power_of_2(groups), "ROWS": rows, "ITEMS": setting.items, "WIDTH": whole,
        "REST": rest, "LISTED": gpu.LISTED, "KEEP": keep, "MASS": True, "SCALED": table == "i8",
    }  # fmt: skip
    names = gpu._tile_best.arg_names
    kinds = POINTERS | {"p_hidden": hidden, "p_table": table}

    def type_of(name):
        if name in constant:
            return "constexpr"
        return f"*{kinds[name]}" if name.startswith("p_") else "i32"

    aligned = [i for i, name in enumerate(names) if name.startswith("p_") or (name == "width" and width % 16 == 0)]
    return ASTSource(
        fn=gpu._tile_best,
        signature={name: type_of(name) for name in names},
        constexprs={(names.index(name),): value for name, value in constant.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )


def options(setting):
    return {"num_warps": setting.warps, "num_stages": setting.stages}


def shared(setting, what):
    """Bytes of shared memory, without the assembler's part of the work."""
    backend = make_backend(HOPPER)
    chosen = backend.parse_options(options(setting))
    context, stages, told = ir.context(), {}, {}
    ir.load_dialects(context)
    backend.load_dialects(context)
    backend.add_stages(stages, chosen, what.language)
    made = what.make_ir(HOPPER, chosen, backend.get_codegen_implementation(chosen), backend.get_module_map(), context)
    for stage in ("ttir", "ttgir", "llir"):
        made = stages[stage](made, told)
    return told["shared"]


def spilled(kernel):
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", said)[1])


if "shared" in sys.argv:
    cases = list(itertools.product(KINDS, (16, 32, 64, 128), (64, 80, 256, 512), (2, 8), (True, False)))
    for (hidden, table), rows, width, groups, keep in cases[:: int(sys.argv[-1])]:
        size, stored = {"bf16": 2, "fp32": 4}[hidden], {"bf16": 2, "fp32": 4, "i8": 1}[table]
        block, setting = gpu.fitting(rows, width, size, stored, gpu.HOPPER)
        took = shared(setting, source(block, setting, hidden, table, width, groups, keep))
        said = gpu.shared(block, width, size, setting, stored)
        print(width, block, *setting, hidden, table, groups, keep, took, said, flush=True)
else:
    for size, settings in gpu.SETTINGS.items():
        for rows, setting in settings.items():
            kind = {2: "bf16", 4: "fp32"}[size]
            kernel = triton.compile(source(rows, setting, kind, kind), target=HOPPER, options=options(setting))
            print(rows, size, kernel.asm["ptx"].count("cp.async.cg"), spilled(kernel))
