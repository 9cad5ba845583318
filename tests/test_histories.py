"""Rows of different lengths as one array."""

import numpy as np
import pytest
import torch

from spdd.histories import pad_front


@pytest.mark.parametrize(
    "given",
    [
        [[3], [], [1, 2]],
        [np.array([3]), np.array([], dtype=np.int64), [1, 2]],
        [torch.tensor([3]), [], (1, 2)],
        np.array([[-1, 3], [-1, -1], [1, 2]]),
        np.array([[-1, 3], [-1, -1], [1, 2]], dtype=np.int32),
        torch.tensor([[-1, 3], [-1, -1], [1, 2]]),
        np.array([[3], [], [1, 2]], dtype=object),
    ],
)
def test_rows_are_padded_at_the_front(given):
    assert pad_front(given).tolist() == [[-1, 3], [-1, -1], [1, 2]]


def test_what_is_read_only_stays_the_callers():
    given = np.array([[1, 2]])
    given.flags.writeable = False
    assert pad_front(given).tolist() == [[1, 2]]


@pytest.mark.parametrize("given", [[], [[]], [[], []]])
def test_nothing_makes_rows_of_nothing(given):
    assert pad_front(given).shape == (len(given), 0)


@pytest.mark.parametrize("given", ["ab", ["ab"], [["a"]], [[None]], [[2**70]], 5, None])
def test_what_is_no_list_of_items_is_refused(given):
    with pytest.raises(TypeError, match="lists of item numbers, one per row"):
        pad_front(given)
