"""A whole policy: which decoder, how it is set, how many slots, which objectives. It names columns, not numbers."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError, field_validator

from .decoders import DECODERS, OF_ITEMS, OF_PROVIDERS, check_settings, decoder_class
from .hints import near, short
from .labels import owners
from .stated import Kinds, Number, Stated, Strict

if TYPE_CHECKING:
    from ..decode.decoder import Decoder
    from ..decode.providers import ProviderMaxMin

_NAMES = TypeAdapter(Annotated[list[StrictStr], Field(min_length=1)])
_MIX = TypeAdapter(Annotated[dict[StrictStr, Number], Field(min_length=1)])


class Policy(Strict):
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
                f"of numbers{mix}; got {short({k: v for k, v in self.settings.items() if k in (setting, 'wanted')})}."
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
                f"got {short({k: v for k, v in self.settings.items() if k == 'providers'})}."
            )
        try:
            _MIX.validate_python(weights)
        except ValidationError:
            raise ValueError(
                f"setting 'weights' of decoder '{OF_PROVIDERS}' must be a number for each label that is not due 1, like "
                f"{{x = 2, y = 0.5}}, got {short(weights)}."
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
                raise ValueError(f"`columns` must hold '{name}', which the policy needs.{near(name, columns)}")
        return {o.name: o.value(columns) for o in self.objectives}
