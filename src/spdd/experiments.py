"""`spdd experiment`: listeners, a model trained on their log, arms by name or policy file; or a table of your own results.

Everything is made here and handed to `evaluate.ab`; what is found is kept as CSV, JSON and a page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .data.interactions import Sequences
from .data.listeners import ListenerWorld
from .evaluate import ab, experiment, simulated
from .evaluate.ab import Experiment
from .evaluate.control import steer
from .evaluate.experiment import Metric
from .files import write_atomically
from .policy_file import Policy, read_policy
from .table.formats import format_of

OBJECTIVE = "new_creator"  # the column of the listeners' catalogue that the objective is about
CONTROL = "control"
SESSIONS = 6  # of the log: the first half stands for what was before, the second for the experiment, when it is planned
SUFFIX = " before"  # what ends the names of covariates
MODELS = ("sasrec", "knn", "popularity")


class Stage(NamedTuple):
    """Where an experiment is played out. value: (M,) of the objective.  floor: of it in a slate, out of `slots`"""

    world: ListenerWorld
    log: Sequences
    before: simulated.Before
    model: Any
    value: np.ndarray
    floor: float
    slots: int


def stage(
    folder: str | Path,
    *,
    users: int = 2000,
    floor: float = 3,
    slots: int = 10,
    model: str = "sasrec",
    seed: int = 0,
    progress: bool = True,
) -> Stage:
    """Listeners, what a service showed them so far, and a model that has learnt from it.

    folder: where a trained model is kept, and found again.  model: one of `MODELS`.  seed: of world and training
    """
    from .models.neighbours import Popularity, item_knn

    if model not in MODELS:
        raise ValueError(f"the model must be one of {', '.join(MODELS)}, got '{model}'.")
    if isinstance(users, bool) or not isinstance(users, int) or users < 100:
        raise ValueError(f"`users` must be a whole number of at least 100, got {users!r}: fewer show nothing.")
    if not 0 <= floor <= slots:
        raise ValueError(f"`floor` must lie between 0 and the {slots} slots, got {floor!r}.")
    world = ListenerWorld(users=users, seed=seed)
    log = world.log(SESSIONS)
    value = world.new_creator.numpy().astype(np.float64)
    if model == "sasrec":
        asked = simulated.sasrec(world, log, folder, seed=seed, progress=progress)
    else:
        train = simulated.learnt_from(world, log).train
        import torch

        count = torch.from_numpy(np.bincount(train.item, minlength=world.items))
        asked = item_knn(train, world.items) if model == "knn" else Popularity(count)
    return Stage(world, log, simulated.before(world, log, value), asked, value, float(floor), slots)


# ---- arms -----------------------------------------------------------------------------------------------------------


def arms_of(
    on: Stage, names: Sequence[str] = ("wa", "spdd"), files: Mapping[str, str | Path] | None = None
) -> list[simulated.Arm]:
    """The control, which has no objective, then arms by name, then those of policy files.

    names: some of `KNOWN`.  files: by the arm's name, a policy file; its columns are those of the listeners' catalogue
    """  # fmt: skip
    wanted = [name for name in names if name != CONTROL]
    for name in wanted:
        if name not in KNOWN:
            raise ValueError(f"arms must be some of {', '.join(KNOWN)}, or NAME=FILE, got '{name}'.")
    policies = {CONTROL: (Policy(decoder="greedy", slots=on.slots), "no objective: the model's own slates")}
    for name in wanted:
        policies[name] = KNOWN[name](on)
    for name, path in (files or {}).items():
        if name in policies:
            raise ValueError(f"arms must have names of their own, got '{name}' twice.")
        policies[name] = read_policy(path), f"the policy of {Path(path).name}"
    if len(policies) < 2:
        raise ValueError("an experiment must have an arm beside the control, got none. Say one: --arms spdd.")
    catalogue = on.world.catalog.attributes
    columns = {name: x.astype(np.float64) if x.dtype == bool else x for name, x in catalogue.items()}
    return [
        simulated.Arm(name, simulated.decoded_by(policy.decoder(columns), on.model), about)
        for name, (policy, about) in policies.items()
    ]


def _spdd(on: Stage) -> tuple[Policy, str]:
    return Policy(
        slots=on.slots, objectives=[_wish(on)]
    ), f"SPDD by default, at least {on.floor:g} of {on.slots} in every slate"


def _must_fill(on: Stage) -> tuple[Policy, str]:
    return Policy(decoder="must-fill", slots=on.slots, objectives=[_wish(on)]), f"a quota of {on.floor:g} of {on.slots}"


def _printed(on: Stage) -> tuple[Policy, str]:
    settings = {"scale": "probability", "start": 1.0, "rate": 1.0, "guard": False}
    return Policy(slots=on.slots, objectives=[_wish(on)], settings=settings), "SPDD as the paper prints it"


def _weighted(on: Stage) -> tuple[Policy, str]:
    """The weight at which slates hold the floor on average, found on histories from before the experiment."""
    history = on.before.history[:400]

    def made(log_price: float) -> Policy:
        price = math.exp(log_price)
        weight = round(price / (1 + price), 4)
        return Policy(decoder="wa", slots=on.slots, objectives=[{"name": OBJECTIVE}], settings={"weight": weight})

    def held(log_price: float) -> float:
        slate = made(log_price).decoder({OBJECTIVE: on.value}).generate(on.model, history, exclude="seen")
        return float(slate.gained.sum(1).mean())

    found = steer(held, on.floor, first=0.0, low=-8.0, high=8.0, step=0.7, tolerance=0.03 * on.floor or 0.03, most=10)
    policy = made(found.knob)
    return policy, (
        f"a weighted average with weight {policy.settings['weight']:g}, at which slates hold {found.delivered:.2f} on average "
        "(found on histories from before)"
    )


def _wish(on: Stage) -> dict[str, Any]:
    return {"name": OBJECTIVE, "at_least": on.floor}


KNOWN = {"wa": _weighted, "spdd": _spdd, "must-fill": _must_fill, "spdd-printed": _printed}


# ---- played out -----------------------------------------------------------------------------------------------------


def play(
    on: Stage,
    arms: Sequence[simulated.Arm],
    *,
    visits: int = 4,
    seed: int = 0,
    aa: bool = False,
    progress: Callable[[int], None] = lambda users: None,
    **settings: Any,
) -> Experiment:
    """The experiment on this stage. progress: told of listeners done, of `steps`.  settings: of `ab.run_experiment`"""
    if isinstance(visits, bool) or not isinstance(visits, int) or visits < 1:
        raise ValueError(f"`visits` must be a whole number of at least 1, got {visits!r}.")
    played = simulated.outcomes(
        on.world, arms[:1] if aa else arms, on.before, value=on.value, floor=on.floor, visits=visits, seed=seed,
        progress=progress,
    )  # fmt: skip
    if aa:
        played = played.alike([arm.name for arm in arms])
    half = SESSIONS // 2
    now = simulated.measured(on.world, on.log, on.value, range(half, SESSIONS))
    then = simulated.measured(on.world, on.log, on.value, range(half))
    return ab.run_experiment(
        played,
        salt=f"experiment {seed}",
        names=on.log.user,
        about={} if aa else {arm.name: arm.about for arm in arms},
        earlier=now | {f"{name}{SUFFIX}": x for name, x in then.items()},
        aa=aa,
        **settings,
    )


def steps(on: Stage, arms: Sequence[simulated.Arm], aa: bool = False) -> int:
    """How many steps of progress `play` has."""
    return len(on.before.history) * (1 if aa else len(arms))


# ---- a table of one's own ---------------------------------------------------------------------------------------------


def of_table(
    path: str | Path,
    *,
    metrics: Sequence[str] = (),
    control: str = CONTROL,
    user: str = "user",
    arm: str = "arm",
    suffix: str = SUFFIX,
    shares: Mapping[str, float] | None = None,
    order: str | None = None,
    peek: int = 0,
    planned: int | None = None,
    lift: float = 0.02,
    alpha: float = 0.05,
    correction: str = "holm",
    cuped: bool = True,
) -> Experiment:
    """The analysis of a table with a row per user.

    metrics: 'minutes', or 'skip rate=skips/looks' for a ratio; all columns of numbers without. A column whose name ends in
             `suffix` holds what the other one was before, and is its covariate
    shares:  by arm, how users should divide; evenly without
    order, peek, planned: the column of the order in which users came, how many looks at them, and how many are to come in all
    """
    import polars as pl

    name = f"'{path}'"
    read = {"csv": pl.read_csv, "parquet": pl.read_parquet, "arrow": pl.read_ipc}[
        format_of(str(path), None, "the table")
    ]
    if not Path(path).exists():
        raise ValueError(f"{name} cannot be read: there is no such file.")
    try:
        table = read(path)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{name} cannot be read: {str(error).splitlines()[0]}.") from None
    for column in (user, arm, *([order] if order else [])):
        _has(table, column, name)
    if peek and not order:
        raise ValueError("looking early needs the order in which users came: name its column with --order.")
    if order:
        table = table.sort(order)
    for column in (user, arm):
        if table[column].null_count():
            raise ValueError(
                f"column '{column}' of {name} must name one in every row, and {table[column].null_count():,} are empty."
            )
    if table[user].n_unique() < len(table):
        twice = table[user].filter(table[user].is_duplicated())[0]
        raise ValueError(f"{name} must have a row per user, and has '{twice}' twice. Sum up what each user did first.")
    labels = table[arm].cast(pl.String)
    arms = sorted(labels.unique().to_list(), key=lambda x: (x != control, x))
    if control not in arms:
        raise ValueError(
            f"{name} has no users in the arm '{control}', only in {', '.join(arms[:9]) or 'none'}. Say which is it: --control."
        )
    if shares is not None and set(shares) != set(arms):
        raise ValueError(f"shares must be said of each arm, {', '.join(arms)}, got {', '.join(shares)}.")
    stated = [_metric(text, table, suffix, name) for text in metrics or _numbers(table, {user, arm, order}, suffix)]
    if not stated:
        raise ValueError(f"{name} must have a column of numbers to compare, beside '{user}' and '{arm}'.")
    if len({m.name for m in stated}) < len(stated):
        raise ValueError("metrics must have names of their own: " + ", ".join(m.name for m in stated) + ".")
    columns = {column: _column(table, column, name) for m in stated for column in m.columns}
    number = {label: n for n, label in enumerate(arms)}
    code = np.array([number[label] for label in labels.to_list()], dtype=np.int64)
    settings: dict[str, Any] = {"alpha": alpha, "correction": correction, "cuped": cuped}
    settings["shares"] = None if shares is None else [shares[a] for a in arms]
    looks = tuple(experiment.looks(columns, code, arms, stated, peek, planned=planned, **settings)) if peek else ()
    seen = looks[-1] if looks else experiment.analyse(columns, code, arms, stated, **settings)
    said = [m if cuped else m.plain() for m in stated]
    able = {n: x[code == 0] for n, x in columns.items()}
    planned_for = experiment.plan(
        able, said, arms=len(arms), users=len(code), lift=lift, alpha=alpha, correction=correction
    )
    kept = {"user": table[user].to_numpy(), "arm": np.array(arms)[code], **columns}
    return Experiment(tuple(arms), {}, tuple(stated), seen, looks, {}, {}, tuple(planned_for), kept, "", False)


def _metric(text: str, table: Any, suffix: str, where: str) -> Metric:
    """'plays' or 'skip rate=skips/looks'; with covariates where the table has them."""
    name, _, formula = text.rpartition("=")
    top, slash, bottom = (part.strip() for part in formula.partition("/"))
    if not top or (slash and not bottom):
        raise ValueError(f"a metric is said as 'minutes' or 'skip rate=skips/looks', got '{text}'.")
    for column in (top, *([bottom] if bottom else [])):
        _has(table, column, where)
    names = [column + suffix for column in (top, *([bottom] if bottom else []))]
    known = all(column in table.columns for column in names)
    before = [names[n] if known and n < len(names) else None for n in (0, 1)]
    about = f"{top} / {bottom}" if bottom else f"{top} per user"
    return Metric(name.strip() or formula.strip(), top, bottom or None, *before, about=about)


def _numbers(table: Any, others: set[str | None], suffix: str) -> list[str]:
    return [c for c in table.columns if c not in others and not c.endswith(suffix) and (table[c].dtype.is_numeric() or str(table[c].dtype) == "Boolean")]  # fmt: skip


def _column(table: Any, name: str, where: str) -> np.ndarray:
    column = table[name]
    if not (column.dtype.is_numeric() or str(column.dtype) == "Boolean"):
        raise ValueError(f"column '{name}' of {where} must hold numbers, and holds {column.dtype}.")
    found = column.cast(float).to_numpy()
    bad = int((~np.isfinite(found)).sum()) if not column.null_count() else column.null_count()
    if bad:
        raise ValueError(
            f"column '{name}' of {where} must hold a number for every user, and {bad:,} have none. Write 0 for who did nothing."
        )
    return found


def _has(table: Any, column: str, where: str) -> None:
    if column not in table.columns:
        raise ValueError(f"{where} must have a column '{column}', and has {', '.join(table.columns) or 'none'}.")


# ---- kept -----------------------------------------------------------------------------------------------------------


def write(result: Experiment, folder: Path, title: str, command: str, **more: str) -> list[Path]:
    """experiment.json, results.csv, users.csv and experiment.html, with figures and tables beside it. Gives the paths."""
    import polars as pl

    from .report import page
    from .report.colophon import colophon
    from .report.experiment import experiment_page

    folder.mkdir(parents=True, exist_ok=True)
    names = [folder / name for name in ("experiment.json", "results.csv", "users.csv", "experiment.html")]
    write_atomically(names[0], json.dumps(as_dict(result), indent=1) + "\n")
    pl.DataFrame([_flat(result, e) for e in result.analysis.estimates]).write_csv(names[1])
    pl.DataFrame(result.table).write_csv(names[2])
    page.write(experiment_page(result, title, colophon([command], **more)), names[3])
    return names


def as_dict(result: Experiment) -> dict[str, Any]:
    """The result for programs; what is not a number is null."""
    seen = result.analysis

    def looked(look: experiment.Analysis) -> dict[str, Any]:
        return {"users": sum(look.ratio.users), "results": [_flat(result, e) for e in look.estimates]}

    return _plain({
        "arms": result.arms, "about": result.about, "salt": result.salt, "aa": result.aa, "alpha": seen.alpha,
        "correction": seen.correction, "sequential": seen.planned is not None,
        "sample_ratio": {**seen.ratio._asdict(), "wrong": seen.ratio.wrong},
        "metrics": [m._asdict() for m in result.metrics], "results": [_flat(result, e) for e in seen.estimates],
        "shown": {arm: s._asdict() for arm, s in result.shown.items()}, "plan": [p._asdict() for p in result.plan],
        "looks": [looked(look) for look in result.looks],
    })  # fmt: skip


def _flat(result: Experiment, e: experiment.Estimate) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": e.arm, "metric": e.metric, "control": e.control, "level": e.level}
    for name, known in (("difference", e.difference), ("lift", e.lift)):
        row |= {name: known.value, f"{name}_low": known.low, f"{name}_high": known.high}
    row |= {"p_value": e.p_value, "adjusted": e.adjusted, "variance_left": e.variance}
    if result.truth:
        row |= {f"true_{name}": x for name, x in result.truth[e.arm, e.metric]._asdict().items()}
    return row


def _plain(x: Any) -> Any:
    """With plain kinds alone, and null for what is not a number."""
    if isinstance(x, Mapping):
        return {key: _plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
