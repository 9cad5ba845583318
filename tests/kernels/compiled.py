"""What the compiler makes of the Triton pass for a Hopper: one line per setting, for test_triton.py.

rows, bytes of the type, asynchronous copies, bytes of stack a thread spills
"""

import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from spdd.kernels import gpu

POINTERS = {"p_member": "u8", "p_pointer": "i32", "p_row": "i32", "p_item": "i64", "p_crowded": "i32", "p_tile": "i32"}
POINTERS |= {"p_best": "fp32", "p_top": "fp32", "p_total": "fp64"}


def compiled(rows, setting, kind):
    constant = {
        "GROUPS": 2, "LANES": 2, "ROWS": rows, "ITEMS": setting.items, "WIDTH": 64, "REST": 0, "LISTED": gpu.LISTED,
        "KEEP": True, "MASS": True, "SCALED": False,
    }  # fmt: skip
    names = gpu._tile_best.arg_names

    def type_of(name):
        if name in constant:
            return "constexpr"
        return f"*{POINTERS.get(name, kind)}" if name.startswith("p_") else "i32"

    whole = [i for i, name in enumerate(names) if name.startswith("p_") or name == "width"]
    source = ASTSource(
        fn=gpu._tile_best,
        signature={name: type_of(name) for name in names},
        constexprs={(names.index(name),): value for name, value in constant.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in whole},
    )
    options = {"num_warps": setting.warps, "num_stages": setting.stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def spilled(kernel):
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", said)[1])


for size, settings in gpu.SETTINGS.items():
    for rows, setting in settings.items():
        kernel = compiled(rows, setting, {2: "bf16", 4: "fp32"}[size])
        print(rows, size, kernel.asm["ptx"].count("cp.async.cg"), spilled(kernel))
