"""Imports point left. Read from the syntax tree, so lazy imports count too and nothing has to be importable.

Two promises: no arrow from a room to one on its right (docs/design.md has the picture), and no ring of modules
that need each other while being imported.
"""

import ast
import graphlib
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "spdd"

# Left to right. Rooms on one line may know each other. A new room needs a place here.
ROOMS = """
errors files histories objective relevance
values catalog
slate
kernels
data
models
decode
evaluate
report
policy_file table
engines
trained
item_columns slates domains policy_text experiments
wish
terminal model_commands evaluate_commands audit_command experiment_commands
demo tour
cli
"""
PLACE = {room: place for place, line in enumerate(ROOMS.split("\n")) for room in line.split()}

# Arrows that point left and are wrong all the same: the algorithm is handed its scores, and kernels know only tensors.
NEVER = {("decode", "data"), ("decode", "models"), *(("kernels", room) for room in ("objective", "relevance", "slate"))}

# The front door hands out what every room offers, so only rooms at the far right may come in by it.
DOOR = "spdd"


class Arrow(NamedTuple):
    source: str  # spdd.decode.guard
    target: str
    place: str  # decode/guard.py:12
    early: bool  # followed while the source is being imported: neither lazy nor for type checkers alone


def test_imports_point_left():
    wrong = wrong_arrows(SOURCE)
    assert not wrong, "\n".join(wrong)


def test_no_ring_of_imports():
    found = ring(SOURCE)
    assert not found, found


def wrong_arrows(source):
    """One line for each arrow that may not be; empty when the house is in order."""
    wrong = []
    for arrow in arrows(source):
        start, end = room(arrow.source), room(arrow.target)
        missing = {start, end} - PLACE.keys() - {DOOR}
        if missing:
            problem = f"no place for {sorted(missing)}: add it to ROOMS in tests/test_layers.py"
        elif start in (end, DOOR):
            continue
        elif end == DOOR:
            problem = "" if PLACE[start] > PLACE["report"] else "only rooms right of `report` use the front door"
        else:
            fine = PLACE[end] <= PLACE[start] and (start, end) not in NEVER
            problem = "" if fine else f"`{start}` may not know `{end}`"
        if problem:
            wrong.append(f"{arrow.place}: {arrow.source} -> {arrow.target}: {problem}")
    return wrong


def ring(source):
    """Modules that need each other to be imported, as 'a -> b -> a'; empty when there are none."""
    graph = {}
    for arrow in arrows(source):
        if arrow.early and arrow.source != arrow.target:
            graph.setdefault(arrow.source, set()).add(arrow.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " -> ".join(reversed(error.args[1]))  # graphlib lists what is needed first
    return ""


def room(module):
    """spdd.decode.guard -> decode. The front door is a room of its own."""
    return module.split(".")[1] if "." in module else DOOR


def arrows(source):
    files = {module_name(path, source): path for path in sorted(source.rglob("*.py"))}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node, early in imports(ast.parse(path.read_text("utf-8"), str(path))):
            place = f"{path.relative_to(source)}:{node.lineno}"
            for target in targets(node, package, files):
                yield Arrow(name, target, place, early)


def module_name(path, source):
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(node, early=True):
    """Every import at or below `node`, and whether it is followed while the module is imported."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, early
        return
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    checking = isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
    for child in ast.iter_child_nodes(node):
        late = function or (checking and child in node.body)
        yield from imports(child, early and not late)


def targets(node, package, files):
    """The modules of ours that one import statement names. `from spdd import decode` means spdd.decode."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        parents = package.split(".")
        base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
        base = ".".join(part for part in (base, node.module) if part)
        inside = [f"{base}.{alias.name}" for alias in node.names]
        names = [name if name in files or is_folder(name, files) else base for name in inside]
    for name in dict.fromkeys(names):
        if name.split(".")[0] != DOOR:
            continue
        yield name
        # Importing a.b.c runs a and a.b first, which counts unless the importer lives in there itself.
        parent = name.rpartition(".")[0]
        while parent and parent != DOOR and not f"{package}.".startswith(f"{parent}."):
            yield parent
            parent = parent.rpartition(".")[0]


def is_folder(name, files):
    return any(file.startswith(f"{name}.") for file in files)


# A check that cannot fail is a defect: each wrong house below must be caught, and the right one must pass.


def house(folder, **modules):
    """A made-up source tree; `decode__guard` names decode/guard.py."""
    source = folder / "spdd"
    for name, text in {"__init__": "", **modules}.items():
        path = source / (name.replace("__", "/") + ".py" if name != "__init__" else "__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


@pytest.mark.parametrize(
    ("modules", "arrow"),
    [
        ({"decode__guard": "import spdd.evaluate.metrics"}, "spdd.decode.guard -> spdd.evaluate.metrics"),
        ({"decode__guard": "from ..evaluate import metrics"}, "spdd.decode.guard -> spdd.evaluate"),
        ({"decode__guard": "from spdd import data"}, "spdd.decode.guard -> spdd"),
        ({"decode__guard": "from spdd.data import tiny"}, "spdd.decode.guard -> spdd.data"),
        ({"decode__guard": "def f():\n    from ..cli import main"}, "spdd.decode.guard -> spdd.cli"),
        ({"objective": "from .slate import Slate"}, "spdd.objective -> spdd.slate"),
        ({"data__tiny": "import spdd.decode"}, "spdd.data.tiny -> spdd.decode"),
        ({"kernels__cpu": "try:\n    import spdd.slate\nfinally:\n    pass"}, "spdd.kernels.cpu -> spdd.slate"),
        ({"evaluate__tune": "from spdd import SPDD"}, "spdd.evaluate.tune -> spdd"),
        ({"attic__old": "import spdd.slate"}, "spdd.attic.old -> spdd.slate"),
    ],
)
def test_wrong_arrow_is_named(tmp_path, modules, arrow):
    source = house(tmp_path, **modules)
    wrong = wrong_arrows(source)
    assert wrong
    assert arrow in wrong[0]
    assert next(iter(modules)).replace("__", "/") + ".py:" in wrong[0]


def test_right_house_passes(tmp_path):
    source = house(
        tmp_path,
        __init__="from .decode.guard import Guard\nfrom spdd.objective import Objective",
        objective="import torch\nfrom .relevance import scale",
        relevance="import torch",
        decode__guard="from spdd import kernels\nfrom .. import objective\nfrom . import bounds",
        decode__bounds="from ..slate import Slate",
        slate="",
        kernels__reference="import torch",
        cli="def main():\n    from spdd import SPDD\n    from .demo import tour",
        demo="import spdd.data.tiny\nimport spdd.decode.guard",
        data__tiny="",
    )
    assert not wrong_arrows(source)
    assert not ring(source)


def test_ring_is_named(tmp_path):
    source = house(
        tmp_path, decode__a="from . import b", decode__b="import spdd.decode.c", decode__c="from .a import x"
    )
    found = ring(source)
    for arrow in ("spdd.decode.a -> spdd.decode.b", "spdd.decode.b -> spdd.decode.c", "spdd.decode.c -> spdd.decode.a"):
        assert arrow in f"{found} -> {found.partition(' -> ')[2]}"


@pytest.mark.parametrize(
    "late",
    [
        "def f():\n    from .a import x",
        "import typing\nif typing.TYPE_CHECKING:\n    from .a import x",
    ],
)
def test_late_import_closes_no_ring(tmp_path, late):
    assert not ring(house(tmp_path, decode__a="from . import b", decode__b=late))
    assert ring(house(tmp_path, decode__a="from . import b", decode__b="from .a import x"))
