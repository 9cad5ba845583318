"""`import spdd` costs torch and numpy, nothing else; `spdd --help` does not even cost torch.

Each import runs in a process of its own, and is compared with what torch and numpy load without us.
"""

import functools
import subprocess
import sys

import pytest


@functools.cache
def loaded(statement):
    """Names of the top-level modules in memory after `statement`."""
    program = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


# The second line: a front door that imports on demand must stay light when its names are used.
@pytest.mark.parametrize("statement", ["import spdd", "from spdd import Greedy, Objective, SPDD"])
def test_front_door_loads_only_torch_and_numpy(statement):
    extra = loaded(statement) - loaded("import torch, numpy") - sys.stdlib_module_names - {"spdd"}
    assert not extra


def test_command_line_starts_without_torch():
    assert "torch" not in loaded("import spdd.cli")


def test_a_heavy_import_is_seen():
    assert "polars" in loaded("import polars") - loaded("import torch, numpy") - sys.stdlib_module_names
