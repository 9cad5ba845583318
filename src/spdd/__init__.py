"""spdd: decode slates that meet several objectives at once, from any generative recommender, without retraining."""

from .decode.search import FromCallable, Model
from .decode.spdd import SPDD, Greedy, MustFill
from .decode.weighted import WA
from .objective import Objective
from .relevance import SCALES
from .slate import IMPOSSIBLE, MET, SHORT, Slate, Status, Trace
