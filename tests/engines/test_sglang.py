"""The SGLang adapter: against its documented interface here, and against the package's own base class in `make test-engines`.

SGLang itself starts only beside a GPU. Its base class can be imported without one; the function that calls processors cannot,
for the file it is in needs torchvision with CUDA: it is taken from that file as it is.
"""

import ast
import importlib.util
import json
import logging
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from spdd.catalog import Catalog
from spdd.engines import request, sglang
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan
from spdd.engines.rows import advance, priced

VOCABULARY = 20
POLICIES = [
    None,
    {"thinking_budget": 5},
    {"spdd_slots": 3, "spdd_objectives": "new>=2"},
    {"spdd": {"slots": 4, "objectives": [{"name": "new", "at_least": 1, "at_most": 2}]}},
    {"spdd": json.dumps({"decoder": "greedy", "slots": 2}), "spdd_exclude": [1, 2, 3]},
]


@pytest.fixture
def menu(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    ids = rng.choice(6**2, 30, replace=False)
    catalog = Catalog.of(np.stack([ids // 6, ids % 6], 1), sizes=[6, 6])
    made = Menu.of(catalog, first=3, columns={"new": rng.random(30) < 0.3}, between=[1], end=2)
    made.save(tmp_path / "menu")
    monkeypatch.setenv(request.MENU, str(tmp_path / "menu"))
    monkeypatch.delenv(request.POLICY, raising=False)
    return request.menu_here()


class Req:
    """What SGLang's Req is to a processor: its parameters are a copy of the client's with a weak reference to itself."""

    def __init__(self, extra, prompt):
        self.origin_input_ids, self.output_ids = [0] * prompt, []
        self.eos_token_ids = {2}
        self.kv = types.SimpleNamespace(kv_committed_len=0)
        params = extra if extra is None else extra | {"__req__": weakref.proxy(self)}
        self.sampling_params = types.SimpleNamespace(custom_params=params, stop_token_ids=None)
        self.extra = extra

    @property
    def params(self):
        return self.sampling_params.custom_params

    def read(self):
        self.kv.kv_committed_len = len(self.origin_input_ids) + len(self.output_ids)

    def expected(self, menu, logits):
        if not self.extra or not any(key.startswith("spdd") for key in self.extra):
            return logits
        asked = request.asked(self.extra)
        rows = Plan.of(menu, asked.plan.decoder).begin(1, [self.extra.get("spdd_exclude", [])])
        if self.output_ids:
            rows = advance(menu, rows, np.array([self.output_ids]))
        return priced(menu, rows, logits[None])[0]


def documented(processor, logits, params):
    return processor(logits, params)


def check_schedule(menu, call, processor, seed):
    """Requests come, go, are retracted and come back, in any order of rows."""
    rng, draw = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    rows, waiting = [], []
    for _ in range(8):
        away = [x for x in rows if rng.random() < 0.15]
        waiting += [x for x in away if rng.random() < 0.6]
        rows = [x for x in rows if x not in away]
        back = [x for x in waiting if rng.random() < 0.4]
        waiting = [x for x in waiting if x not in back]
        rows += back
        if len(rows) < 5 and rng.random() < 0.6:
            extra = POLICIES[rng.integers(len(POLICIES))]
            rows += [Req(extra, int(rng.integers(1, 5))) for _ in range(1 + (rng.random() < 0.3))]
        if not rows:
            continue
        rng.shuffle(rows)
        for x in rows:
            x.read()
        given = 3 * torch.randn(len(rows), VOCABULARY, generator=draw)
        found = call(processor, given.clone(), [x.params for x in rows])
        for line, x in enumerate(rows):
            assert torch.equal(found[line], x.expected(menu, given[line]))
            x.output_ids.append(int(torch.multinomial(found[line].div(3).softmax(0), 1, generator=draw)))


def test_random_schedules(menu):
    for seed in range(100):
        check_schedule(menu, documented, sglang.SlateProcessor(), seed)


def test_what_cannot_be_served_is_ended_and_others_go_on(menu, caplog):
    bad, good = Req({"spdd_objectives": "nwe>=1"}, 2), Req(POLICIES[2], 2)
    given = torch.randn(2, VOCABULARY)
    found = sglang.SlateProcessor()(given.clone(), [bad.params, good.params])
    assert found[0].isfinite().nonzero().tolist() == [[2]]
    assert torch.equal(found[1], good.expected(menu, given[1]))
    assert "needs the column 'nwe'" in caplog.text


def test_the_overlap_schedule_is_noticed(menu, caplog):
    """It calls the processor before the last token is in the request's output."""
    one = Req(POLICIES[2], 2)
    one.read()
    processor = sglang.SlateProcessor()
    assert processor(torch.zeros(1, VOCABULARY), [one.params])[0].isfinite().sum() > 1
    one.kv.kv_committed_len += 1
    assert processor(torch.zeros(1, VOCABULARY), [one.params])[0].isfinite().nonzero().tolist() == [[2]]
    assert "--disable-overlap-schedule" in caplog.text


def test_drafts_are_ended(menu, caplog):
    one = Req(POLICIES[2], 2)
    found = sglang.SlateProcessor()(torch.zeros(3, VOCABULARY), [one.params] * 3)
    assert found.isfinite().nonzero().tolist() == [[0, 2], [1, 2], [2, 2]]


def test_arguments_refuse_what_cannot_be_had(menu):
    for given, sampling, message in (
        ({"spdd_objectives": "nwe>=1"}, {}, "needs the column 'nwe'"),
        ({"spdd_slots": 3, "spdd_objectives": "new>=4"}, {}, "can keep what is asked"),
        ({"spdd_slots": 3}, {"beam_width": 4}, "`beam_width` must be 1"),
        ({"spdd_slots": 3}, {"regex": "a"}, "`regex` must not be given"),
        ({"spdd_slots": 3}, {"max_new_tokens": 7}, "`max_new_tokens` must be 9"),
    ):
        with pytest.raises(ValueError, match=message):
            sglang.arguments(given, **sampling)
    assert sglang.arguments(None, temperature=0) == {"sampling_params": {"temperature": 0}}


# ---- the package's own ------------------------------------------------------------------------------------------------


@pytest.fixture
def caller():
    """SGLang's own function that calls processors, without the imports around it."""
    found = importlib.util.find_spec("sglang")
    if found is None:
        pytest.skip("SGLang is not installed")
    source = (Path(found.origin).parent / "srt" / "layers" / "sampler.py").read_text()
    wanted = "apply_custom_logit_processor"
    function = next(x for x in ast.parse(source).body if isinstance(x, ast.FunctionDef) and x.name == wanted)
    world = {"torch": torch, "logger": logging.getLogger("sglang"), "SamplingBatchInfo": object}
    exec(compile(ast.Module([function], []), "sampler.py", "exec"), world)
    return world[wanted]


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
def test_the_installed_base_class_and_caller(menu, caller):
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    assert issubclass(sglang.SlateProcessor, CustomLogitProcessor)
    text = sglang.SlateProcessor.to_str()
    processor = CustomLogitProcessor.from_str(text)
    assert type(processor) is sglang.SlateProcessor

    class Batch(list):
        device = "cpu"

    def call(processor, logits, params):
        # Half of the requests sent no processor: SGLang picks the rows of those that did.
        rows = [line for line, given in enumerate(params) if given is not None]
        batch = Batch(params)
        entry = types.SimpleNamespace(processor=processor, rows=rows, indices=torch.tensor(rows, dtype=torch.int64))
        batch.custom_params, batch.custom_logit_processor = params, {1: entry} if rows else {}
        caller(logits, batch)
        return logits

    for seed in range(50):
        check_schedule(menu, call, processor, seed)
    sent = sglang.arguments(POLICIES[2])
    assert sent["custom_logit_processor"] == text
