"""Pictures of what decoders trade: several panels with one vertical axis, sweeps as lines, single decoders as dots.

Labels stand at what they name, so that nobody has to match colours with a legend. Colours are those of Okabe and Ito,
which the colour-blind can tell apart, and each line has a shape of its own besides. Needs the extra `report`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WIDTH, HEIGHT = 500, 440
SIZE = 12  # of letters, in pixels
GREY, INK = "#6b6b6b", "#222222"
LINES = (("#0072B2", "circle"), ("#D55E00", "square"), ("#009E73", "triangle-up"), ("#CC79A7", "cross"))
