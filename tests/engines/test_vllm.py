"""The vLLM adapter without vLLM: 1,000 random schedules for each of its runners, held against one request at a time.

The worlds below do what the two runners do (read in their sources, see docs/vllm.md): V1 fills holes, slides rows down,
swaps them, and shows live lists in which tokens can be placeholders; V2 keeps slots and one buffer of all tokens, and puts
some of the slots into each step, in any order. `test_vllm_real.py` runs the same class in a real vLLM.
"""

import json
import types
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from spdd.catalog import Catalog
from spdd.engines import request, vllm
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan
from spdd.engines.rows import advance, items, priced

VOCABULARY = 20
POLICIES = [
    None,
    {"session_id": "of another plug-in"},
    {"spdd_slots": 3, "spdd_objectives": "new>=2"},
    {"spdd": {"slots": 4, "objectives": [{"name": "new", "at_least": 1, "at_most": 2}]}},
    {"spdd": json.dumps({"decoder": "greedy", "slots": 2}), "spdd_exclude": [1, 2, 3]},
    {"spdd_decoder": "wa", "spdd_slots": 3, "spdd_objectives": ["dear>=1"], "spdd_settings": ["weight=0.4"]},
]


@pytest.fixture(scope="module")
def menu():
    rng = np.random.default_rng(0)
    ids = rng.choice(6**2, 30, replace=False)
    catalog = Catalog.of(np.stack([ids // 6, ids % 6], 1), sizes=[6, 6])
    columns = {"new": rng.random(30) < 0.3, "dear": rng.random(30)}
    return Menu.of(catalog, first=3, columns=columns, between=[1], end=2)


@pytest.fixture
def here(menu, tmp_path, monkeypatch):
    """The menu, as a server's environment names it."""
    menu.save(tmp_path / "menu")
    monkeypatch.setenv(request.MENU, str(tmp_path / "menu"))
    monkeypatch.delenv(request.POLICY, raising=False)
    return request.menu_here()


def params(extra, **more):
    """What our adapter reads of vLLM's SamplingParams."""
    return types.SimpleNamespace(**{"extra_args": extra, "max_tokens": None, "all_stop_token_ids": {2}} | more)


def config(**more):
    model = types.SimpleNamespace(get_vocab_size=lambda: VOCABULARY, logits_processors=None)
    scheduler = types.SimpleNamespace(async_scheduling=False)
    return types.SimpleNamespace(**{"model_config": model, "scheduler_config": scheduler} | more)


# ---- what one request should see ----------------------------------------------------------------------------------


@dataclass
class Request:
    extra: dict | None
    params: object
    seed: int
    prompt: int
    written: list = field(default_factory=list)  # what the runner shows: can hold placeholders
    true: list = field(default_factory=list)
    computed: int = 0  # tokens of the prompt, and of what was written, that were read

    def logits(self):
        """What a model would say after these tokens."""
        rng = np.random.default_rng([self.seed, self.prompt, *self.true])
        return torch.from_numpy(rng.normal(size=VOCABULARY).astype(np.float32) * 3)


class Oracle:
    """Each request by itself, from its first token."""

    def __init__(self, menu):
        self.menu, self.begun = menu, {}

    def row(self, extra):
        key = json.dumps(extra)
        if key not in self.begun:
            flat = extra.get("spdd", {})
            policy = dict(json.loads(flat) if isinstance(flat, str) else flat)
            policy |= {key: extra[f"spdd_{key}"] for key in ("decoder", "slots") if f"spdd_{key}" in extra}
            texts = extra.get("spdd_objectives", [])
            for text in [texts] if isinstance(texts, str) else texts:
                name, least = text.split(">=")
                policy.setdefault("objectives", []).append({"name": name, "at_least": int(least)})
            if "spdd_settings" in extra:
                policy["settings"] = {"weight": 0.4}
            self.begun[key] = Plan.of(self.menu, policy).begin(1, [extra.get("spdd_exclude", [])])
        return self.begun[key]

    def expected(self, request_):
        logits = request_.logits()
        if not request_.extra or not any(key.startswith("spdd") for key in request_.extra):
            return logits
        rows = self.row(request_.extra)
        if request_.true:
            rows = advance(self.menu, rows, np.array([request_.true]))
        return priced(self.menu, rows, logits[None])[0]

    def choose(self, rng, scores):
        """A token by sampling, hot, so that all branches are walked."""
        return int(torch.multinomial(torch.softmax(scores.double() / 3, 0), 1, generator=rng))


def arrivals(rng, number):
    """Some requests that arrive together: one, or several that share one object of settings (n > 1)."""
    extra = POLICIES[rng.integers(len(POLICIES))]
    shared, prompt = params(extra), int(rng.integers(1, 6))
    return [Request(extra, shared, number + k, prompt) for k in range(1 + 2 * (rng.random() < 0.25))]


# ---- V1 -------------------------------------------------------------------------------------------------------------


class Move(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


class V1:
    """vLLM's InputBatch, what a processor is told of it: holes are filled, then rows slide down, then rows may swap."""

    def __init__(self, rng, processor):
        self.rng, self.processor, self.rows, self.told = rng, processor, [], Counter()

    def change(self, leave, come):
        removed = sorted((self.rows.index(x) for x in leave), reverse=True)
        added, moved = [], []
        for row in removed:
            self.rows[row] = None
        for x in come:
            row = removed.pop() if removed else len(self.rows)
            self.rows[row : row + 1] = [x]
            added.append((row, x.params, [0] * x.prompt, x.written))
        while removed:
            last = max((i for i, x in enumerate(self.rows) if x is not None), default=-1)
            hole = removed[-1]
            if hole >= last:
                break
            removed.pop()
            self.rows[hole], self.rows[last] = self.rows[last], None
            moved.append((last, hole, Move.UNIDIRECTIONAL))
        while self.rows and self.rows[-1] is None:
            self.rows.pop()
        if len(self.rows) > 1 and self.rng.random() < 0.3:
            one, other = (int(x) for x in self.rng.choice(len(self.rows), 2, replace=False))
            self.rows[one], self.rows[other] = self.rows[other], self.rows[one]
            moved.append((one, other, Move.SWAP))
        nothing = not (removed or added or moved)
        self.told.update(remove=len(leave), add=len(added), **Counter(how.name for _, _, how in moved))
        update = types.SimpleNamespace(batch_size=len(self.rows), removed=removed, added=added, moved=moved)
        self.processor.update_state(None if nothing else update)


def run_v1(seed, oracle):
    rng, draw = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    batch = V1(rng, vllm.SlateProcessor(config(), torch.device("cpu"), False))
    delayed, waiting = rng.random() < 0.5, []
    for step in range(8):
        leave = [x for x in batch.rows if rng.random() < 0.1]
        preempted = [x for x in leave if rng.random() < 0.6]  # the rest is done
        waiting += preempted
        come = [x for x in waiting if rng.random() < 0.4]
        waiting = [x for x in waiting if x not in come]
        batch.told.update(preempt=len(preempted), resume=len(come))
        for x in come:
            if rng.random() < 0.5:
                x.written = list(x.true)  # a new list, as after asynchronous scheduling
            x.computed = 0
        if len(batch.rows) < 6 and rng.random() < 0.5:
            new = arrivals(rng, 1000 * seed + 10 * step)
            batch.told["n > 1"] += len(new) > 1
            come += new
        for x in batch.rows:
            if x not in leave and rng.random() < 0.05:  # taken back: its cache could not be read
                del x.written[-3:], x.true[-3:]
        batch.change(leave, come)
        if delayed:  # tokens arrive when the batch has been told already
            for x in batch.rows:
                x.written[:] = x.true
        if not batch.rows:
            continue
        given = torch.stack([x.logits() for x in batch.rows])
        found = batch.processor.apply(given.clone())
        for row, x in enumerate(batch.rows):
            assert torch.equal(found[row], oracle.expected(x)), (seed, step, row)
            batch.told["compared"] += 1
            x.computed += int(rng.integers(1, 4))
            if x.computed < x.prompt:  # in the middle of its prompt: what is sampled does not count
                continue
            x.true.append(oracle.choose(draw, found[row]))
            x.written.append(-1 if delayed else x.true[-1])
    return batch.told


@pytest.mark.slow
def test_random_schedules_v1(here):
    oracle = Oracle(here)
    told = [run_v1(seed, oracle) for seed in range(1000)]
    total = sum(told, Counter())
    assert total["compared"] > 12_000
    assert min(total[x] for x in ("add", "remove", "UNIDIRECTIONAL", "SWAP", "preempt", "resume", "n > 1")) > 400, total


# ---- V2 -------------------------------------------------------------------------------------------------------------


class V2:
    """vLLM's RequestState: slots that do not move, taken from a free list, and what a step's context says of them."""

    def __init__(self, rng, slots=8, length=64):
        self.rng, self.free, self.slots = rng, list(range(slots)), {}
        tokens = torch.randint(0, VOCABULARY, (slots, length), dtype=torch.int32)  # of those who were here before
        self.states = types.SimpleNamespace(
            device=torch.device("cpu"),
            all_token_ids=types.SimpleNamespace(gpu=tokens),
            prompt_len=types.SimpleNamespace(np=np.zeros(slots, np.int32)),
            total_len=types.SimpleNamespace(gpu=torch.zeros(slots, dtype=torch.int32)),
        )
        self.processor = vllm.SlateProcessor(config(), self.states)

    def add(self, x):
        slot = self.free.pop(int(self.rng.integers(len(self.free))))
        self.slots[slot] = x
        self.states.prompt_len.np[slot] = x.prompt
        self.states.all_token_ids.gpu[slot].random_(0, VOCABULARY)  # staged: nothing of this request is there yet
        steered = self.processor.add_request(slot, x.params)
        assert steered == bool(x.extra and any(key.startswith("spdd") for key in x.extra))
        self.states.all_token_ids.gpu[slot, x.prompt : x.prompt + len(x.true)] = torch.tensor(x.true, dtype=torch.int32)

    def remove(self, slot):
        self.free.append(slot)  # nobody is told
        return self.slots.pop(slot)

    def context(self, slots, seen):
        index = torch.tensor(slots)
        return types.SimpleNamespace(
            expanded_idx_mapping=index,
            idx_mapping=index,
            idx_mapping_np=np.array(slots, np.int32),
            expanded_local_pos=torch.zeros(len(slots), dtype=torch.int32),
            seq_lens_upper_bound_np=np.array(seen, np.int32),
        )


def run_v2(seed, oracle):
    rng, draw = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    batch, waiting, told = V2(rng), [], Counter()
    for step in range(8):
        for slot in list(batch.slots):
            if rng.random() < 0.1:
                x = batch.remove(slot)
                preempted = rng.random() < 0.6
                waiting += [x] if preempted else []
                told.update(remove=1, preempt=int(preempted))
        come = [x for x in waiting if rng.random() < 0.4]
        waiting = [x for x in waiting if x not in come]
        told["resume"] += len(come)
        if len(batch.slots) < 5 and rng.random() < 0.5:
            new = arrivals(rng, 1000 * seed + 10 * step)
            told["n > 1"] += len(new) > 1
            come += new
        for x in come:
            if batch.free:
                x.computed = 0
                batch.add(x)
                told["add"] += 1
        batch.processor.apply_staged_writes()
        slots = [slot for slot in rng.permutation(list(batch.slots)).tolist() if rng.random() < 0.9]
        if not slots:
            continue
        here_ = [batch.slots[slot] for slot in slots]
        for x in here_:  # a long prefix is read in pieces, also after a pre-emption
            x.computed = min(x.computed + int(rng.integers(1, 5)), x.prompt + len(x.true))
        given = torch.stack([x.logits() for x in here_])
        found = batch.processor.apply(given.clone(), batch.context(slots, [x.computed for x in here_]))
        for line, (slot, x) in enumerate(zip(slots, here_, strict=True)):
            if x.computed < x.prompt + len(x.true):
                continue  # what is sampled does not count
            assert torch.equal(found[line], oracle.expected(x)), (seed, step, slot)
            told["compared"] += 1
            x.true.append(oracle.choose(draw, found[line]))
            batch.states.all_token_ids.gpu[slot, x.prompt + len(x.true) - 1] = x.true[-1]
    return told


@pytest.mark.slow
def test_random_schedules_v2(here):
    oracle = Oracle(here)
    total = sum((run_v2(seed, oracle) for seed in range(1000)), Counter())
    assert total["compared"] > 8_000
    assert min(total[x] for x in ("add", "remove", "preempt", "resume", "n > 1")) > 400, total


# ---- the rest of the contract ---------------------------------------------------------------------------------------


def added(row, extra, tokens, **more):
    return types.SimpleNamespace(removed=[], added=[(row, params(extra, **more), [0], tokens)], moved=[])


def test_without_a_policy_nothing_is_read_or_changed(monkeypatch):
    monkeypatch.delenv(request.MENU, raising=False)
    monkeypatch.delenv(request.POLICY, raising=False)
    processor = vllm.SlateProcessor(config(), torch.device("cpu"), False)
    vllm.SlateProcessor.validate_params(params(None))
    processor.update_state(added(0, None, []))
    processor.update_state(None)
    logits = torch.randn(1, VOCABULARY)
    assert processor.apply(logits) is logits
    assert processor.seats is None


def test_a_token_that_is_hidden_ends_its_request_and_no_other(here, caplog):
    processor = vllm.SlateProcessor(config(), torch.device("cpu"), False)
    hidden = []
    processor.update_state(added(0, POLICIES[2], hidden))
    processor.update_state(added(1, POLICIES[2], []))
    first = processor.apply(torch.zeros(2, VOCABULARY))
    hidden.append(-1)
    found = processor.apply(torch.zeros(2, VOCABULARY))
    assert found[0].isfinite().nonzero().tolist() == [[2]]
    assert torch.equal(found[1], first[1])
    assert "asynchronous scheduling" in caplog.text


def test_a_request_that_can_no_longer_be_served_is_ended_not_raised(here, caplog):
    processor = vllm.SlateProcessor(config(), torch.device("cpu"), False)
    processor.update_state(added(0, {"spdd_objectives": "gone>=1"}, []))
    found = processor.apply(torch.zeros(1, VOCABULARY))
    assert found[0].isfinite().nonzero().tolist() == [[2]]
    assert "needs the column 'gone'" in caplog.text


def test_named_and_found_by_its_entry_point_it_works_once(here):
    engine = config()
    pair = [vllm.SlateProcessor(engine, torch.device("cpu"), False) for _ in range(2)]
    given = torch.randn(1, VOCABULARY)
    for processor in pair:
        processor.update_state(added(0, POLICIES[2], []))
    once = pair[0].apply(given.clone())
    assert not torch.equal(once, given)
    assert torch.equal(pair[1].apply(once.clone()), once)
    assert not vllm.SlateProcessor(config(), torch.device("cpu"), False).idle


def test_a_default_policy_and_a_request_that_opts_out(here, tmp_path, monkeypatch):
    path = tmp_path / "policy.toml"
    path.write_text('slots = 2\nobjectives = [{name = "new", at_least = 1}]')
    monkeypatch.setenv(request.POLICY, str(path))
    assert request.asked(None).plan.slots == 2
    assert request.asked({"spdd_slots": 3}).plan.slots == 3
    assert request.asked({"spdd_slots": 3}).plan.decoder.objectives[0].at_least == 1
    assert request.asked({"spdd": {"slots": 1}}).plan.decoder.objectives == ()
    assert request.asked({"spdd": "off"}) is None


def test_the_menu_is_read_once_and_again_when_it_was_replaced(here, menu):
    asked = request.asked(POLICIES[2])
    assert request.asked(POLICIES[3]).menu is asked.menu
    assert request.asked(POLICIES[2]).begun is asked.begun
    menu.with_columns({"new": 1 - menu.column("new")}).save(request.os.environ[request.MENU])
    after = request.asked(POLICIES[2])
    assert after.menu is not asked.menu
    assert after.menu.columns == ("new",)


def test_requests_go_on_with_the_menu_they_began_with(here, menu):
    """Two menus in one batch."""
    processor = vllm.SlateProcessor(config(), torch.device("cpu"), False)
    old = []
    processor.update_state(added(0, POLICIES[2], old))
    processor.apply(torch.zeros(1, VOCABULARY))
    turned = menu.with_columns({"new": 1 - menu.column("new")})
    turned.save(request.os.environ[request.MENU])
    new = []
    processor.update_state(added(1, POLICIES[2], new))
    for _ in range(9):
        given = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(len(old)))
        found = processor.apply(given.clone())
        for line, (menu_, tokens) in enumerate([(here, old), (turned, new)]):
            rows = Plan.of(menu_, {"slots": 3, "objectives": [{"name": "new", "at_least": 2}]}).begin(1)
            rows = advance(menu_, rows, np.array([tokens], np.int64).reshape(1, -1)) if tokens else rows
            assert torch.equal(found[line], priced(menu_, rows, given[line : line + 1])[0])
            tokens.append(int(found[line].argmax()))
    processor.update_state(types.SimpleNamespace(removed=[0], added=[], moved=[]))
    processor.apply(torch.zeros(2, VOCABULARY))
    assert len(processor.seats.pools) == 1


def test_tokens_become_items(here):
    tokens = [*here.spell([4])[0], 1, *here.spell([9])[0], 2]
    slate = vllm.slates([tokens, tokens[:2], []], {"spdd_slots": 2})
    assert slate.items.tolist() == [[4, 9], [4, -1], [-1, -1]]
    assert vllm.max_tokens({"spdd_slots": 2}) == len(tokens)
    rows = advance(here, Plan.of(here, {"slots": 2}).begin(1), np.array([tokens]))
    assert items(here, rows).tolist() == [[4, 9]]


def test_what_one_request_cannot_have_is_a_status(here):
    """As everywhere: it is served as well as can be."""
    extra = {"spdd_slots": 2, "spdd_objectives": "new>=1", "spdd_exclude": np.flatnonzero(here.column("new")).tolist()}
    vllm.SlateProcessor.validate_params(params(extra))
    assert vllm.slates([[]], extra).status.tolist() == [2]


BAD = [
    ({"spdd_slot": 3}, "'spdd_slot' must be one of"),
    ({"spdd_objectives": "nwe>=1"}, "needs the column 'nwe', which the menu does not have. There is: new, dear"),
    ({"spdd_objectives": "new"}, "objective must read like"),
    ({"spdd_objectives": [1]}, "'spdd_objectives' must be text"),
    ({"spdd_objectives": "new>=9"}, "no slate of 10 items .* 'new' at least 9, where 8 is the most there can be"),
    ({"spdd_objectives": "new>=1 per traffic"}, 'must have per = "slate"'),
    ({"spdd_exclude": [30]}, "items from 0 to 29"),
    ({"spdd_exclude": ["a"]}, "'spdd_exclude' must be a list of item numbers"),
    ({"spdd_decoder": "mmr"}, "`decoder` must be|decoder 'mmr' needs"),
    ({"spdd_settings": "scale=probability"}, "`scale` must be one of"),
    ({"spdd": "policy.toml"}, "'spdd' must be a policy"),
    ({"spdd": 3}, "must hold keys"),
    ({"spdd": "off", "spdd_slots": 2}, "'spdd' is 'off'"),
    ({"spdd": {"slotz": 3}}, "slotz"),
    ({"spdd_slots": 0}, "slots"),
]


@pytest.mark.parametrize(("extra", "message"), BAD, ids=str)
def test_bad_requests_are_refused_with_our_words(here, extra, message):
    with pytest.raises(ValueError, match=message):
        vllm.SlateProcessor.validate_params(params(extra))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_tokens": 16}, "`max_tokens` must be at least 29, which 10 items take, got 16"),
        ({"structured_outputs": {"json": {}}}, "`structured_outputs` must not be given beside a policy"),
        ({"allowed_token_ids": [1]}, "`allowed_token_ids` must not be"),
        ({"bad_words": ["a"]}, "`bad_words` must not be"),
    ],
    ids=str,
)
def test_settings_that_break_slates_are_refused(here, more, message):
    with pytest.raises(ValueError, match=message):
        vllm.SlateProcessor.validate_params(params({"spdd": "on"}, **more))


class Front:
    """vLLM's InputProcessor: it checks requests, and knows the engine."""

    tokenizer = None

    def __init__(self, vllm_config):
        self.vllm_config = vllm_config

    def check(self, given):
        vllm.SlateProcessor.validate_params(given)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"speculative_config": object()}, "an engine with speculative decoding cannot keep promises"),
        ({"scheduler_config": types.SimpleNamespace(async_scheduling=True)}, "only if it is named"),
        ({"model_config": types.SimpleNamespace(get_vocab_size=lambda: 9)}, "a vocabulary of at least 15 tokens"),
    ],
    ids=str,
)
def test_engines_that_cannot_do_it_are_named(here, engine, message):
    with pytest.raises(ValueError, match=message):
        Front(config(**engine)).check(params(POLICIES[2]))
    Front(config(**engine)).check(params(None))
    Front(config()).check(params(POLICIES[2]))


def test_a_tokenizer_that_calls_tokens_otherwise_is_named(menu, tmp_path, monkeypatch):
    names = [f"<{code}>" for code in range(VOCABULARY)]
    mine, other = (tokenizer(given) for given in (names, names[::-1]))
    Menu.of(Catalog.of([[0, 1], [1, 0]]), words=["<{}>", "<1{}>"], tokenizer=mine, end=2).save(tmp_path / "named")
    monkeypatch.setenv(request.MENU, str(tmp_path / "named"))
    front = Front(config())
    front.tokenizer = mine
    front.check(params({"spdd_slots": 1}))
    front.tokenizer = other
    with pytest.raises(ValueError, match="the menu was built with other names for its tokens"):
        front.check(params({"spdd_slots": 1}))


def tokenizer(names):
    words = Tokenizer(WordLevel({name: token for token, name in enumerate(names)}, unk_token=names[-1]))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token=names[-1])


def test_v2_with_asynchronous_scheduling_is_fine(here):
    engine = config(scheduler_config=types.SimpleNamespace(async_scheduling=True), use_v2_model_runner=True)
    Front(engine).check(params(POLICIES[2]))


def test_no_menu_is_said(monkeypatch):
    monkeypatch.delenv(request.MENU, raising=False)
    with pytest.raises(ValueError, match="the environment variable SPDD_MENU must name a file"):
        vllm.SlateProcessor.validate_params(params({"spdd": "on"}))
    monkeypatch.setenv(request.MENU, "/nowhere/menu")
    with pytest.raises(ValueError, match="'/nowhere/menu' of SPDD_MENU cannot be read"):
        vllm.SlateProcessor.validate_params(params({"spdd": "on"}))


def test_a_menu_without_an_end_needs_the_exact_length(menu, tmp_path, monkeypatch):
    ids = Catalog.of([[0, 1], [1, 0], [1, 1]])
    Menu.of(ids, first=3).save(tmp_path / "endless")
    monkeypatch.setenv(request.MENU, str(tmp_path / "endless"))
    with pytest.raises(ValueError, match="`max_tokens` must be 4, which 2 items take, got None"):
        vllm.SlateProcessor.validate_params(params({"spdd_slots": 2}))
    vllm.SlateProcessor.validate_params(params({"spdd_slots": 2}, max_tokens=4))
