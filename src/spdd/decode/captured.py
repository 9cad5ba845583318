"""A model whose slates are replayed: the whole loop over slots recorded once as a CUDA graph, then launched as one.

A slot is a hundred small operations, and starting each from Python costs more than running it. Recorded are all slots of a
slate together: scores, choice, prices, guard and the model's own step. What comes in is copied to where the recording
reads it, what comes out is copied away; nothing waits for the device in between. A recording serves every batch of the same
shapes, so hand over histories padded to one length. On a CPU the same is done without a graph, which gains nothing and
shows that the copying is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels import Barred
from . import products
from .primal_dual import Problem, State, linear
from .products import Source, Walked


class Captured:
    """The model, to be decoded like any other: `decoder.generate(Captured(model), histories)`.

    model: offers `hidden` and `table`; its `advance` must do the same to tensors of the same shapes, whatever they hold,
           and ask for nothing that only the device knows. Its weights stay where they are: train it elsewhere. Its state is
           tensors, numbers, text, slices and None, in tuples, lists and dicts; anything else is refused
    most:  recordings kept, the latest; each holds the memory one slate needs
    """

    def __init__(self, model: Any, most: int = 8):
        self.model, self.most = model, most
        self._recorded: list[Recorded] = []

    def __getattr__(self, name: str) -> Any:
        if name == "model" or name.startswith("__"):  # not there yet in a copy that is being made
            raise AttributeError(name)
        return getattr(self.model, name)

    def _spdd_walk(
        self, problem: Problem, begun: State, model: Any, source: Source, trace: bool, settle: bool
    ) -> Walked:
        """As `products.walk`. What is not proven is said, never settled: that would take a look at the numbers."""
        if problem.combine is not linear:  # a function made for this batch, which may hold tensors of its own
            return products.walk(problem, begun, self.model, source, trace, settle)
        scores, groups = source.scores, source.groups
        check_state(source.state)
        tensors, form = taken_apart((problem, begun, source.state, scores.hidden, scores.longest, source.barred))
        # What is known by its address is kept by the recording, so that nothing else can come to lie there.
        stays = (*map(lies, (scores.table, scores.row_scale)), id(groups), id(source.part), source.scale, trace)
        found = [x for x in self._recorded if x.form == form and x.stays == stays]
        if not found:
            empty = source._replace(state=None, barred=Barred(), scores=scores._replace(hidden=scores.hidden[:0]))

            def loop(tensors: list[Tensor]) -> Walked:
                problem, begun, state, hidden, longest, barred = put_together(form, tensors)
                near = empty.scores._replace(hidden=hidden, longest=longest)
                mine = empty._replace(state=state, scores=near, barred=barred)
                return products.walk(problem, begun, self.model, mine, trace, settle=False)

            found = [Recorded(loop, tensors, form, stays)]
            self._recorded = [*self._recorded, *found][-self.most :]
        return found[0](tensors)


class Recorded:
    """A function of tensors that reads them where they were when it was recorded.

    form, stays: what a batch must be like to be served by this recording
    """

    def __init__(self, function: Callable[[list[Tensor]], Any], tensors: list[Tensor], form, stays):
        self.function, self.form, self.stays = function, form, stays
        self.inputs = [x.clone(memory_format=torch.contiguous_format) for x in tensors]
        self.graph = torch.cuda.CUDAGraph() if any(x.is_cuda for x in tensors) else None
        self.outputs: Any = None
        if self.graph is not None:
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):  # kernels are compiled at their first call, which cannot be recorded
                function(self.inputs)
            torch.cuda.current_stream().wait_stream(beside)
            # Another thread may ask its device for memory meanwhile: that is not of this recording.
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.outputs = function(self.inputs)

    def __call__(self, tensors: list[Tensor]) -> Any:
        for mine, given in zip(self.inputs, tensors, strict=True):
            mine.copy_(given)
        if self.graph is None:
            self.outputs = self.function(self.inputs)
        else:
            self.graph.replay()
        results, form = taken_apart(self.outputs)
        return put_together(form, [x.clone() for x in results])


def lies(x: Tensor | None) -> Any:
    """Where a tensor's numbers lie, and how they are read."""
    return x if x is None else (x.data_ptr(), x.shape, x.stride(), x.dtype, x.device)


def check_state(state: Any) -> None:
    """Refuse what may hold tensors out of sight: a recording would go on with those of its first batch."""
    if isinstance(state, (tuple, list, dict)):
        for x in state.values() if isinstance(state, dict) else state:
            check_state(x)
    elif not isinstance(state, Tensor | None | bool | int | float | str | slice):
        raise TypeError(
            "the state of a captured model must be made of tensors, numbers, text, slices and None in tuples, lists and dicts, "
            f"got {type(state).__name__}. Keep the tensors in one of those, or decode without `Captured`."
        )


class Place(NamedTuple):
    """Where a tensor was, and what may come in its stead."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


def taken_apart(tree: Any) -> tuple[list[Tensor], Any]:
    """The tensors in nested tuples, lists and dicts, in order, and all the rest: equal where one recording serves both."""
    if isinstance(tree, Tensor):
        return [tree], Place(tree.shape, tree.dtype, tree.device)
    if isinstance(tree, (tuple, list, dict)):
        keys = list(tree) if isinstance(tree, dict) else None
        parts = [taken_apart(x) for x in (tree.values() if isinstance(tree, dict) else tree)]
        return [x for tensors, _ in parts for x in tensors], (type(tree), keys, [form for _, form in parts])
    return [], (None, None, tree)


def put_together(form: Any, tensors: list[Tensor]) -> Any:
    """What was taken apart, with these tensors."""
    return _filled(form, iter(tensors))


def _filled(form, tensors):
    if isinstance(form, Place):
        return next(tensors)
    kind, keys, rest = form
    if kind is None:
        return rest
    parts = [_filled(part, tensors) for part in rest]
    if keys is not None:
        return kind(zip(keys, parts, strict=True))
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
