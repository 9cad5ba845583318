"""Objectives as a policy file states them: columns in the place of values, a `kind` for those that depend on the slate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
    model_validator,
)

import spdd

from .labels import as_array, labels, one_hot, owners

if TYPE_CHECKING:
    from ..objective import Objective

Number = StrictInt | StrictFloat
Target = Number | StrictStr  # value units per slate, or "30%" of the slots


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class _Named(Strict):
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
        found = as_array(columns[name])
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
            return np.stack([as_array(columns[c]) for c in self.categories], -1).astype(np.float64)
        codes, known = owners(columns[self.column])
        if self.wanted is not None:
            places = [known.index(name) if name in known else len(known) for name in self.wanted]
            return np.stack([codes == place for place in places], -1).astype(np.float64)
        return one_hot(codes)


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
