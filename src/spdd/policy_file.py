"""One TOML or JSON file that says a whole policy: the decoder, its settings, the slots, the objectives.

The command line, services and engines read the same file. It names columns, not numbers: what they hold comes
later, from a table, a batch or a request. Everything is checked when the file is read, decoder settings too,
so that a wrong word is refused before any work starts. The texts of the command line ("new>=3") are read here
as well, because they say the same things.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

import spdd

if TYPE_CHECKING:
    from .decode.decoder import Decoder
    from .decode.providers import ProviderMaxMin
    from .objective import Objective

# The names people type, and the class of the front door each stands for.
DECODERS = {
    "spdd": "SPDD",
    "must-fill": "MustFill",
    "greedy": "Greedy",
    "wa": "WA",
    "epr": "EPR",
    "bandit-ucb": "BanditUCB",
    "bandit-ts": "BanditTS",
    "mmr": "MMR",
    "dpp": "DPP",
    "calibrated": "Calibrated",
    "provider-max-min": "ProviderMaxMin",
}

# Settings that name columns, because they say what items are like: a column of labels, or a list of columns of numbers.
OF_ITEMS = {"mmr": "embeddings", "dpp": "embeddings", "calibrated": "table"}
OF_PROVIDERS = "provider-max-min"  # asks whose items are, with a column of labels that hold for all of the traffic
NOT_IN_FILES = ("objectives", "slots", "similarity", "names")  # said elsewhere, or a matrix, or read off the column

Number = StrictInt | StrictFloat
Target = Number | StrictStr  # value units per slate, or "30%" of the slots


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class _Named(_Strict):
    name: StrictStr = Field(min_length=1, description="What people call the objective; also a column of the output.")
    rate: Number | None = Field(None, description="How fast its price moves, where that differs from the decoder's.")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns its value is made of."""
        return (getattr(self, "column", None) or self.name,)

    def objective(self) -> Objective:
        """As decoders take it, with the column's name in place of the value."""
        given = {k: v for k, v in self if k in ("rate", "at_least", "at_most", "per")}
        return spdd.Objective(self.name, value=self.columns[0], **given)

    def value(self, columns: Mapping[str, Any]) -> Any:
        """What to bind the objective to. columns: (M,) or (R, M) per column: numbers, or labels of any kind."""
        raise NotImplementedError


class _Targeted(_Named):
    at_least: Target | None = Field(None, description='The floor per slate: value units, or "30%" of the slots.')
    at_most: Target | None = Field(None, description="The cap per slate, said the same way.")
    per: Literal["slate", "traffic", "both"] = Field(
        "slate", description="Whether the targets bind every slate, the average over all slates served, or both."
    )


class ByValue(_Targeted):
    """How much each item gives is a column of numbers."""

    kind: Literal["value"] = "value"
    column: StrictStr | None = Field(None, description="The column with the values; the objective's name if left out.")

    def value(self, columns):
        name = self.columns[0]
        found = _array(columns[name])
        if found.dtype.kind not in "fiub" and any(isinstance(x, str) for x in found.ravel().tolist()):
            raise ValueError(
                f"objective '{self.name}' counts numbers, and column '{name}' holds labels. Ask for those with one label, "
                f"'{name}=LABEL' of a trained model's items, or give a column of numbers."
            )
        return columns[name]


class _Grouped(_Named):
    column: StrictStr = Field(description="The column that says which group an item belongs to.")

    def objective(self):
        return dataclasses.replace(super().objective(), at_most=0)  # of items that break the rule

    def value(self, columns):
        return self.of(labels(columns[self.column]))

    def of(self, groups: Any) -> Any:
        """groups: (M,) or (R, M) whole numbers, -1 for none"""
        raise NotImplementedError


class PerGroup(_Grouped):
    """At most so many items of one group: an artist, a brand, a seller."""

    kind: Literal["per_group"]
    most: StrictInt = Field(ge=1, description="Items of one group a slate may hold.")

    def of(self, groups):
        return spdd.at_most_per_group(self.name, groups, self.most).value


class Spacing(_Grouped):
    """Items of one group stay apart: any `distance` slots in a row hold no group twice."""

    kind: Literal["spacing"]
    distance: StrictInt = Field(ge=2, description="How many slots in a row hold no group twice.")

    def of(self, groups):
        return spdd.spacing(self.name, groups, self.distance).value


class Kinds(NamedTuple):
    """A table of T categories per item: from a column of labels, or else from columns of numbers.

    wanted: how much of each category is wanted, where the table is for that; labels that it does not name are
            no category then: they can only take a slot from one that is wanted
    """

    column: str
    categories: tuple[str, ...] = ()
    wanted: Mapping[str, float] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the categories, as far as they are known before the table is."""
        return self.categories or tuple(self.wanted or ())

    @property
    def mix(self) -> list[float]:
        return [float((self.wanted or {}).get(name, 0)) for name in self.names]

    def table(self, columns: Mapping[str, Any]) -> np.ndarray:
        """(..., T) float64. columns: (...) labels or numbers by column name"""
        if self.categories:
            return np.stack([_array(columns[c]) for c in self.categories], -1).astype(np.float64)
        codes, known = owners(columns[self.column])
        if self.wanted is not None:
            places = [known.index(name) if name in known else len(known) for name in self.wanted]
            return np.stack([codes == place for place in places], -1).astype(np.float64)
        return one_hot(codes)


def one_hot(codes: np.ndarray) -> np.ndarray:
    """(..., T) 1 at each item's code. codes: (...) whole numbers from 0 on; -1 for none"""
    return (codes[..., None] == np.arange(codes.max(initial=0) + 1)).astype(np.float64)


class _Categories(_Targeted):
    column: StrictStr | None = Field(None, description="A column of labels: the one category an item belongs to.")
    categories: tuple[StrictStr, ...] = Field(
        (), alias="columns", description="Columns of numbers: how much of each category an item has."
    )

    @property
    def columns(self):
        return self.categories or (self.column or self.name,)

    @model_validator(mode="after")
    def _one_of_two(self):
        if self.column is not None and self.categories:
            raise ValueError("takes `column` (labels) or `columns` (numbers), not both")
        return self

    @property
    def kinds(self) -> Kinds:
        """What its table is made of."""
        return Kinds(self.column or self.name, self.categories)

    def value(self, columns):
        return self.of(self.kinds.table(columns))

    def of(self, table: Any) -> Any:
        """table: (M, T) or (R, M, T) how much of each category an item has"""
        raise NotImplementedError


class Coverage(_Categories):
    """How many categories a slate covers, with less for those covered already."""

    kind: Literal["coverage"]
    concave: Literal["sqrt", "log"] | Number = Field(
        "sqrt", description='How a category\'s items add up: "sqrt", "log", or a number c for min(sum, c).'
    )

    def of(self, table):
        return spdd.coverage(table, self.concave)


class Calibration(_Categories):
    """How well a slate's mix of categories matches the mix that is wanted, from 0 to 1."""

    kind: Literal["calibration"]
    wanted: dict[StrictStr, Number] = Field(
        min_length=1, description="The mix that is wanted, by label, or by column where `columns` is given."
    )

    @model_validator(mode="after")
    def _known(self):
        strange = [name for name in self.wanted if self.categories and name not in self.categories]
        if strange:
            raise ValueError(f"wants '{strange[0]}', which is none of its `columns`: {', '.join(self.categories)}")
        return self

    @property
    def kinds(self):
        return super().kinds._replace(wanted=self.wanted)

    def of(self, table):
        return spdd.calibration(table, self.kinds.mix)


def _kind(given: Any) -> str:
    return str(given.get("kind", "value")) if isinstance(given, Mapping) else getattr(given, "kind", "value")


OBJECTIVE_KINDS = {
    "value": ByValue,
    "per_group": PerGroup,
    "spacing": Spacing,
    "coverage": Coverage,
    "calibration": Calibration,
}

Stated = Annotated[
    Annotated[ByValue, Tag("value")]
    | Annotated[PerGroup, Tag("per_group")]
    | Annotated[Spacing, Tag("spacing")]
    | Annotated[Coverage, Tag("coverage")]
    | Annotated[Calibration, Tag("calibration")],
    Discriminator(_kind),
]


_NAMES = TypeAdapter(Annotated[list[StrictStr], Field(min_length=1)])
_MIX = TypeAdapter(Annotated[dict[StrictStr, Number], Field(min_length=1)])


class Policy(_Strict):
    """A whole policy: which decoder, how it is set, how many slots, which objectives."""

    decoder_name: StrictStr = Field(
        "spdd",
        alias="decoder",
        description="Which decoder fills the slates.",
        json_schema_extra={"enum": list(DECODERS)},
    )
    slots: StrictInt = Field(10, ge=1, description="Items per slate.")
    objectives: tuple[Stated, ...] = Field((), description="What slates should have enough of, or not too much of.")
    settings: dict[str, Any] = Field({}, description="Settings of the decoder, e.g. scale, rate, guard, weight.")

    @field_validator("decoder_name")
    @classmethod
    def _known(cls, name):
        decoder_class(name)
        return name

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is needed, once each."""
        items = self.kinds
        own = () if items is None else items.categories or (items.column,)
        own = own if self.providers is None else (self.providers,)
        return tuple(dict.fromkeys([*(c for o in self.objectives for c in o.columns), *own]))

    @property
    def kinds(self) -> Kinds | None:
        """What the decoder itself asks of items, where it does."""
        setting = OF_ITEMS.get(self.decoder_name)
        if setting is None:
            return None
        named, wanted = self.settings.get(setting), None
        column = named if isinstance(named, str) else ""
        try:
            categories = () if column else _NAMES.validate_python(named)
            if setting == "table":
                wanted = _MIX.validate_python(self.settings.get("wanted"))
        except ValidationError:
            mix = (
                ""
                if setting == "embeddings"
                else ", and `wanted`, the mix by label or column, like {rock = 0.6, jazz = 0.4}"
            )
            raise ValueError(
                f"decoder '{self.decoder_name}' needs the setting `{setting}`, a column of labels or a list of columns "
                f"of numbers{mix}; got {_short({k: v for k, v in self.settings.items() if k in (setting, 'wanted')})}."
            ) from None
        return Kinds(column, tuple(categories), wanted)

    @property
    def providers(self) -> str | None:
        """The column that says whose an item is, where the decoder asks."""
        if self.decoder_name != OF_PROVIDERS:
            return None
        column, weights = self.settings.get("providers"), self.settings.get("weights", {"any": 1})
        if not isinstance(column, str) or not column:
            raise ValueError(
                f"decoder '{OF_PROVIDERS}' needs the setting `providers`, a column of labels that says whose an item is; "
                f"got {_short({k: v for k, v in self.settings.items() if k == 'providers'})}."
            )
        try:
            _MIX.validate_python(weights)
        except ValidationError:
            raise ValueError(
                f"setting 'weights' of decoder '{OF_PROVIDERS}' must be a number for each label that is not due 1, like "
                f"{{x = 2, y = 0.5}}, got {_short(weights)}."
            ) from None
        return column

    @property
    def about_items(self) -> bool:
        """Whether the decoder must know items from the start, not only objectives."""
        return self.kinds is not None or self.providers is not None

    def decoder(self, columns: Mapping[str, Any] | None = None) -> Decoder:
        """The decoder. columns: (M,) or (R, M) numbers or labels by column name; without, `bind` gives values later.

        >>> policy = Policy(slots=2, objectives=[{"name": "new", "at_least": 1}])
        >>> policy.decoder({"new": [0, 0, 1]}).rerank(np.array([[3.0, 2.0, 1.0]])).items
        array([[0, 2]])
        """
        if columns is None:
            return self.made()
        values = self.values(columns)
        if self.providers is not None:
            codes, names = owners(columns[self.providers])
            if not names:
                raise ValueError(
                    f"column '{self.providers}' must name the provider of one item at least, got none. Name another "
                    "column in `providers`."
                )
            return self.fair_to(names).bind(values, providers=codes)
        return self.made(None if self.kinds is None else self.kinds.table(columns)).bind(values)

    def fair_to(self, names: Sequence[str]) -> ProviderMaxMin:
        """The decoder for these providers, by name, no values yet; `bind` numbers them in this order, from 0."""
        return typing.cast("ProviderMaxMin", self.made(names=names))

    def made(self, table: Any = None, names: Sequence[str] | None = None) -> Decoder:
        """The decoder, no values yet. For one that asks: table: (M, T) or (R, M, T), what items are like; names: all providers"""
        settings, kinds = dict(self.settings), self.kinds
        check_settings(self.decoder_name, settings)
        if self.about_items and table is None and names is None:
            raise ValueError(f"decoder '{self.decoder_name}' must know its items from the start. Give `columns`.")
        if self.providers is not None:
            settings |= {"providers": np.arange(len(names or ())), "names": names}
        if kinds is not None:
            settings[OF_ITEMS[self.decoder_name]] = table
            if kinds.wanted is not None:
                settings["wanted"] = kinds.mix
        objectives = [o.objective() for o in self.objectives]
        return decoder_class(self.decoder_name)(objectives=objectives, slots=self.slots, **settings)

    def check(self) -> None:
        """A ValueError or TypeError says why there can be no such decoder."""
        check_settings(self.decoder_name, self.settings)
        if self.providers is not None:
            self.fair_to([*self.settings.get("weights", ["any"])])
        else:
            self.made(None if self.kinds is None else np.ones((1, max(1, len(self.kinds.names)))))

    def values(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """What `Decoder.bind` takes: a value for each objective, by its name."""
        for name in self.columns:
            if name not in columns:
                raise ValueError(f"`columns` must hold '{name}', which the policy needs.{_near(name, columns)}")
        return {o.name: o.value(columns) for o in self.objectives}


# ---- reading ------------------------------------------------------------------------------------------------


def read_policy(path: str | Path) -> Policy:
    """The policy in a .toml or .json file, checked whole: its decoder can be built.

    >>> _ = Path("policy.toml").write_text('slots = 5\\nobjectives = [{name = "new", at_least = "30%"}]')
    >>> read_policy("policy.toml").decoder().objectives[0].at_least
    '30%'
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".json"):
        raise ValueError(f"policy file '{path}' must end in .toml or .json, got '{path.suffix}'.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"policy file '{path}' must be UTF-8 text. Save it again as UTF-8.") from None
    except OSError as error:
        raise ValueError(f"policy file '{path}' cannot be read: {error.strerror or error}.") from None
    try:
        found = tomllib.loads(text) if suffix == ".toml" else json.loads(text, object_pairs_hook=_once)
    except ValueError as error:  # both decoders' errors are; they name line and column
        raise ValueError(f"policy file '{path}' is not {suffix[1:].upper()}: {error}.") from None
    return policy_of(found, f"policy file '{path}'")


def policy_of(found: Any, where: str = "policy") -> Policy:
    """The policy a mapping says, checked whole. where: how messages call it"""
    if not isinstance(found, Mapping):
        raise ValueError(f"{where} must hold keys like `slots` and `objectives`, got {_short(found)}.")
    try:
        policy = Policy.model_validate(dict(found))
    except ValidationError as error:
        raise ValueError("\n".join(dict.fromkeys(_message(e, where) for e in error.errors()))) from None
    try:
        policy.check()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    return policy


def _once(pairs):
    found = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key '{key}' is given twice in one object")
        found[key] = value
    return found


def _message(error: Mapping[str, Any], where: str) -> str:
    """One line: where, which key, the rule, what came, the way out."""
    at, model = [str(part) for part in error["loc"]], Policy
    if at[:1] == ["objectives"] and len(at) > 2:
        model = OBJECTIVE_KINDS[at.pop(2)]
    # Behind the key stand the kinds of a union that were tried: no business of the reader's.
    at = at[: 3 if model is not Policy else 2 if at[:1] == ["objectives"] else 1]
    key = [part for part in at if not part.isdigit()][-1:] or [""]
    path = re.sub(r"\.(\d+)", r"[\1]", ".".join(at))
    came = _short(error["input"])
    known = [field.alias or name for name, field in model.model_fields.items()]
    match error["type"]:
        case _ if path == "decoder":
            rule = f"must be one of {', '.join(DECODERS)}, got {came}.{_close(error['input'], DECODERS)}"
        case "extra_forbidden":
            rule = f"is no key here.{_near(key[0], known)}"
        case "missing":
            rule = f"is required in {came}."
        case "union_tag_invalid":
            rule = f"must have a `kind` of {', '.join(OBJECTIVE_KINDS)}, got {came}."
        case "value_error":
            rule = f"{error['ctx']['error']}, got {came}."
        case _:
            rule = f"must be {_RULES.get(key[0], error['msg'].lower())}, got {came}."
    return f"{where}: `{path}` {rule}"


_RULES = {
    "slots": "a whole number of at least 1",
    "objectives": "a list of objectives, each with a `name`",
    "settings": "a table of settings, like {rate = 0.1}",
    "name": "a non-empty string",
    "column": "the name of a column",
    "columns": "a list of column names",
    "at_least": 'a number or a percentage of the slots like "30%"',
    "at_most": 'a number or a percentage of the slots like "30%"',
    "per": "'slate', 'traffic' or 'both'",
    "rate": "a number",
    "most": "a whole number of at least 1",
    "distance": "a whole number of at least 2",
    "concave": "'sqrt', 'log' or a number",
    "wanted": "a number for each category, like {rock = 0.6, jazz = 0.4}",
}


# ---- decoders and their settings ------------------------------------------------------------------------------


def decoder_class(name: str) -> type[Decoder]:
    if name not in DECODERS:
        raise ValueError(f"decoder must be one of {', '.join(DECODERS)}, got '{name}'.{_close(name, DECODERS)}")
    return getattr(spdd, DECODERS[name])


def settings_of(decoder: str) -> dict[str, Any]:
    """The type of each setting the decoder takes, by name."""
    made = decoder_class(decoder)
    types = typing.get_type_hints(made)
    return {f.name: types[f.name] for f in dataclasses.fields(made) if f.init and f.name not in NOT_IN_FILES}


def check_settings(decoder: str, settings: Mapping[str, Any]) -> None:
    """Names and types; the decoder itself checks the rest."""
    known = settings_of(decoder)
    for name, given in settings.items():
        if name not in known:
            raise ValueError(f"decoder '{decoder}' has no setting '{name}'.{_near(name, known)}")
        try:
            TypeAdapter(known[name]).validate_python(given, strict=True)
        except ValidationError as error:
            rule = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise ValueError(f"setting '{name}' of decoder '{decoder}' must be {rule}, got {_short(given)}.") from None


def amended(
    policy: Policy,
    *,
    decoder: str | None = None,
    slots: int | None = None,
    objectives: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    where: str = "command line",
) -> Policy:
    """The policy with what the command line, or a request, says instead. where: how messages call that

    An objective the policy has already gets the new floor or cap and keeps the rest; others are added. With
    another decoder, only those of the policy's settings are kept that it has too.
    """
    found = policy.model_dump(by_alias=True, exclude_defaults=True)
    kept = dict(policy.settings)
    if decoder is not None:
        known = settings_of(decoder)
        found["decoder"] = decoder
        kept = {name: given for name, given in kept.items() if name in known or decoder == policy.decoder_name}
    if slots is not None:
        found["slots"] = slots
    stated = {o.name: o.model_dump(by_alias=True, exclude_unset=True) for o in policy.objectives}
    for objective in objectives:
        stated[objective["name"]] = {**stated.get(objective["name"], {}), **objective}
    return policy_of({**found, "objectives": list(stated.values()), "settings": {**kept, **(settings or {})}}, where)


# ---- the texts of the command line ------------------------------------------------------------------------------


def policy_said(
    file: str | Path | None,
    *,
    decoder: str | None = None,
    slots: int | None = None,
    objectives: Iterable[str] | None = (),
    at_most_per: Iterable[str] | None = (),
    settings: Iterable[str] | None = (),
) -> Policy:
    """The policy of a file, or the usual one, with what the options of a command say on top.

    >>> policy_said(None, slots=5, objectives=["new>=2"], settings=["rate=0.1"]).decoder().slots
    5
    """
    return amended(
        Policy() if file is None else read_policy(file),
        decoder=decoder,
        slots=slots,
        objectives=[*parse_objectives(objectives or ()), *map(parse_per_group, at_most_per or ())],
        settings=dict(map(parse_setting, settings or ())),
    )


_NUMBER = r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*%?|[+-]?(?:nan|inf)"
_AFTER = re.compile(rf"(?P<name>.*\S)\s*(?P<sign>>=|<=|≥|≤)\s*(?P<target>{_NUMBER})$", re.DOTALL)
_BEFORE = re.compile(rf"(?P<target>{_NUMBER})\s*(?P<sign>>=|<=|≥|≤)\s*(?P<name>.*\S)$", re.DOTALL)
_PER = re.compile(r"(?P<rest>.*\S)\s+per\s+(?P<per>slate|traffic|both)$", re.DOTALL)
_SIDE = {">=": "at_least", "≥": "at_least", "<=": "at_most", "≤": "at_most"}
_TURNED = {"at_least": "at_most", "at_most": "at_least"}


def parse_objective(text: str) -> dict[str, Any]:
    """What an objective's text says, in the words of a policy file.

    >>> parse_objective("new creators>=3")
    {'name': 'new creators', 'at_least': 3}
    >>> parse_objective("10% <= new <= 30% per traffic")
    {'name': 'new', 'at_most': '30%', 'at_least': '10%', 'per': 'traffic'}
    """
    rest = text.strip()
    per = _PER.match(rest)
    if per:
        rest = per["rest"]
    found: dict[str, Any] = {}
    after = _AFTER.match(rest)
    if after:
        found[_SIDE[after["sign"]]] = _target(after["target"])
        rest = after["name"]
    before = _BEFORE.match(rest)
    if before:
        side = _TURNED[_SIDE[before["sign"]]]
        if side in found:
            raise ValueError(f"objective '{text}' states two {'floors' if side == 'at_least' else 'caps'}. Give one.")
        found[side] = _target(before["target"])
        rest = before["name"]
    if not found:
        raise ValueError(
            f"objective must read like 'new creators>=3', 'margin<=2.5', 'new>=30%', '2<=new<=4' or "
            f"'new>=3 per traffic', got '{text}'."
        )
    return {"name": rest, **found, **({"per": per["per"]} if per else {})}


def parse_objectives(texts: Iterable[str]) -> list[dict[str, Any]]:
    """All of them; a floor and a cap stated apart become one objective.

    >>> parse_objectives(["new>=2", "new<=4"])
    [{'name': 'new', 'at_least': 2, 'at_most': 4}]
    """
    merged: dict[str, dict[str, Any]] = {}
    for text in texts:
        found = parse_objective(text)
        held = merged.setdefault(found["name"], {})
        for key in held.keys() & found.keys() - {"name"}:
            if held[key] != found[key]:
                words = {"at_least": "floor", "at_most": "cap", "per": "`per`"}
                raise ValueError(
                    f"objective '{found['name']}' has two values for its {words[key]}, {held[key]} and {found[key]}. Give one."
                )
        held.update(found)
    return list(merged.values())


def parse_per_group(text: str) -> dict[str, Any]:
    """What --at-most-per says.

    >>> parse_per_group("artist<=2")
    {'name': 'at most 2 per artist', 'kind': 'per_group', 'column': 'artist', 'most': 2}
    """
    found = re.fullmatch(r"(?P<column>.*\S)\s*(?:<=|≤)\s*(?P<most>\d+)", text.strip(), re.DOTALL)
    if not found or int(found["most"]) < 1:
        raise ValueError(
            f"--at-most-per must read like 'artist<=2', a column and a whole number of at least 1, got '{text}'."
        )
    column, most = found["column"], int(found["most"])
    return {"name": f"at most {most} per {column}", "kind": "per_group", "column": column, "most": most}


def parse_setting(text: str) -> tuple[str, Any]:
    """Name and value of a setting: a TOML value, or else the text as it stands.

    >>> parse_setting("rate=0.2"), parse_setting("scale=probability"), parse_setting("weight=[0.2, 0.1]")
    (('rate', 0.2), ('scale', 'probability'), ('weight', [0.2, 0.1]))
    """
    name, sign, value = (part.strip() for part in text.partition("="))
    if not name or not sign or not value:
        raise ValueError(f"--set must read like 'rate=0.2', got '{text}'.")
    try:
        found = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return name, value
    return name, found["value"] if len(found) == 1 else value


def _target(text: str) -> float | int | str:
    text = text.replace("_", "").replace(" ", "")
    if text.endswith("%"):
        return text
    number = float(text)
    return int(number) if math.isfinite(number) and number == int(number) else number


# ---- labels, words ----------------------------------------------------------------------------------------------


def labels(given: Any) -> np.ndarray:
    """Numbers from 0 on that tell labels apart, -1 where there is none. The same as for a column of a table on disk."""
    return owners(given)[0]


def owners(given: Any) -> tuple[np.ndarray, list[str]]:
    """Numbers from 0 on, -1 for none, and what the labels are as text, in order. given: labels of any kind; empty is none

    >>> owners(["y", None, "x", "", "y"])
    (array([ 1, -1,  0, -1,  1]), ['x', 'y'])
    """
    array = _array(given)
    every, place = array.ravel(), None
    if array.dtype != object:
        every, place = np.unique(array, return_inverse=True)
    texts = [label_text(label) for label in every.tolist()]
    known = sorted({text for text in texts if text})
    at = {text: code for code, text in enumerate(known)}
    codes = np.array([at.get(text, -1) for text in texts], dtype=np.int64)
    return (codes if place is None else codes[place]).reshape(array.shape), known


def label_text(label: Any) -> str:
    """As a table on disk has it: a whole number is the same whether or not empty places made its column one of floats."""
    if isinstance(label, np.generic):
        label = label.item()
    if label is None or label != label:
        return ""
    if isinstance(label, bool):
        return str(label).lower()
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _array(given: Any) -> np.ndarray:
    return given.detach().cpu().numpy() if hasattr(given, "detach") else np.asarray(given)


def _close(name: Any, known: Iterable[str]) -> str:
    """' Did you mean ...?' where something is close."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.6)
    close = close or [k for k in known if k.lower() == str(name).lower()]
    return f" Did you mean {' or '.join(f'`{c}`' for c in close)}?" if close else ""


def _near(name: Any, known: Iterable[str]) -> str:
    """The same, or else what there is."""
    known = list(known)
    more = f" and {len(known) - 12} more" if len(known) > 12 else ""
    return _close(name, known) or f" There is: {', '.join(known[:12]) or 'none'}{more}."


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:76]} ..."


__all__ = [
    "DECODERS",
    "Policy",
    "amended",
    "check_settings",
    "decoder_class",
    "labels",
    "owners",
    "parse_objective",
    "parse_objectives",
    "parse_per_group",
    "parse_setting",
    "policy_of",
    "policy_said",
    "read_policy",
    "settings_of",
]
