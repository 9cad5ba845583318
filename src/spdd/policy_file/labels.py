"""Labels of items as numbers: the same from a table on disk, a numpy array or a list."""

from __future__ import annotations

from typing import Any

import numpy as np


def labels(given: Any) -> np.ndarray:
    """Numbers from 0 on that tell labels apart, -1 where there is none. The same as for a column of a table on disk."""
    return owners(given)[0]


def owners(given: Any) -> tuple[np.ndarray, list[str]]:
    """Numbers from 0 on, -1 for none, and what the labels are as text, in order. given: labels of any kind; empty is none

    >>> owners(["y", None, "x", "", "y"])
    (array([ 1, -1,  0, -1,  1]), ['x', 'y'])
    """
    array = as_array(given)
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


def one_hot(codes: np.ndarray) -> np.ndarray:
    """(..., T) 1 at each item's code. codes: (...) whole numbers from 0 on; -1 for none"""
    return (codes[..., None] == np.arange(codes.max(initial=0) + 1)).astype(np.float64)


def as_array(given: Any) -> np.ndarray:
    return given.detach().cpu().numpy() if hasattr(given, "detach") else np.asarray(given)
