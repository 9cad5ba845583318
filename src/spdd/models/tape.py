"""Keys and values of a transformers model, written on like a tape: at its end, in place, and wound back for free.

The library's own dynamic cache copies all it holds whenever a token is added, and its static one attends to all the
room it has. This one makes room ahead and hands out a view of what is written.
"""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import Cache, DynamicLayer

ROOM = 64  # tokens of room made at least, whenever there is none left


class Tape(Cache):
    """A cache for `layers` layers. What is written after a `cut` goes over what was there."""

    def __init__(self, layers: int):
        self.tracks = [TapeLayer() for _ in range(layers)]
        super().__init__(layers=[*self.tracks])

    def cut(self, length: int) -> None:
        """Wind back to the first `length` tokens."""
        for track in self.tracks:
            track.length = length


class TapeLayer(DynamicLayer):
    """keys, values: (R, heads, room, D), of which the first `length` tokens are written."""

    keys: Any
    values: Any

    def __init__(self):
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states, value_states):
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self.keys, self.values = (self._wider(x, end) for x in (self.keys, self.values))
        self.keys[..., self.length : end, :] = key_states
        self.values[..., self.length : end, :] = value_states
        self.length = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def get_seq_length(self):
        return self.length

    def _wider(self, x, end):
        wide = x.new_empty((*x.shape[:-2], end + max(ROOM, end // 2), x.shape[-1]))
        wide[..., : self.length, :] = x[..., : self.length, :]
        return wide
