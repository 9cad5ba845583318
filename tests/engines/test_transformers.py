"""Inside transformers: the same slates whoever runs the loop, and nothing illegal whatever the loop is told."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

import spdd
from spdd.catalog import Catalog
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan, prepare
from spdd.engines.transformers import SlateProcessor, _inputs, begin, fill_slates, generate
from spdd.models.lmrec import small_llama

M, SLOTS = 300, 6
Objective = spdd.Objective


@pytest.fixture(scope="module")
def new():
    return np.random.default_rng(1).random(M) < 0.1


@pytest.fixture(scope="module")
def old():
    return np.random.default_rng(2).random(M) < 0.5


@pytest.fixture(scope="module")
def model():
    """A tiny Llama with semantic ids, some of which are shared; sure enough of itself that items differ in rank."""
    catalog = Catalog.of(np.random.default_rng(0).integers(0, 8, (M, 3)), sizes=[8] * 3)
    assert catalog.collisions().shared > 30
    made = small_llama(catalog, width=32, layers=2, heads=2, dropout=0.0, beams=1)
    with torch.no_grad():
        for parameter in made.lm.parameters():
            parameter.mul_(3)
    return made


@pytest.fixture(scope="module")
def policies(new, old):
    return [
        spdd.SPDD([Objective("new", new, at_least=3)], slots=SLOTS),
        spdd.Greedy(slots=SLOTS),
        spdd.SPDD([Objective("new", new, at_least=2), Objective("old", old, at_most=2)], slots=SLOTS, start=1.0),
        spdd.WA([Objective("new", new, at_least=1)], slots=SLOTS, weight=0.6),
        spdd.MustFill([Objective("old", old, at_most=1)], slots=SLOTS),
        spdd.SPDD([Objective("new", new, at_least="50%", at_most=4)], slots=SLOTS, pace="remaining", rate=1.0),
    ]


@pytest.fixture(scope="module")
def histories():
    rng = np.random.default_rng(3)
    return [rng.integers(0, M, n).tolist() for n in (5, 3, 8, 5, 1, 20)]


def asked(model, histories, menu):
    """What transformers reads, and what each row has seen."""
    _, inputs, _, seen = _inputs(model, histories, menu, None, "seen")
    return inputs, seen


@pytest.mark.parametrize("beams", [1, 4])
def test_same_slates_as_our_own_loop(model, policies, histories, beams):
    model.beams = beams
    for policy in policies:
        own = policy.generate(model, histories, exclude="seen").numpy()
        slate = generate(model, histories, policy, exclude="seen", beams=beams)
        np.testing.assert_array_equal(slate.items, own.items)
        np.testing.assert_allclose(slate.relevance, own.relevance, atol=1e-4)
        np.testing.assert_allclose(slate.dual, own.dual)
        np.testing.assert_array_equal(slate.gained, own.gained)
        np.testing.assert_array_equal(slate.status, own.status)
        np.testing.assert_array_equal(slate.reachable, own.reachable)


def test_several_policies_in_one_batch(model, policies, histories):
    """Our own loop one by one, transformers greedy through the processor, and our loop inside transformers: one answer."""
    model.beams = 1
    own = [p.generate(model, [h], exclude="seen").numpy() for p, h in zip(policies, histories, strict=True)]
    menu, plans = prepare(Menu.of(model.catalog, first=model.first), policies)
    inputs, seen = asked(model, histories, menu)
    processor = SlateProcessor(plans, inputs["input_ids"].shape[1], exclude=seen)
    out = model.lm.generate(**inputs, logits_processor=[processor], max_new_tokens=plans[0].tokens, do_sample=False)
    through = processor.slates(out)
    inside = generate(model, histories, policies, exclude="seen", menu=menu)
    for mine, *others in zip(own, through, inside, strict=True):
        for other in others:
            np.testing.assert_array_equal(other.items, mine.items)
            np.testing.assert_array_equal(other.status, mine.status)
            np.testing.assert_array_equal(other.gained, mine.gained)
    assert len({tuple(x.items[0]) for x in own}) == len(own)


def test_policies_with_beams_in_one_batch_are_each_as_alone(model, policies, histories):
    together = generate(model, histories, policies, exclude="seen", beams=4)
    for policy, history, slate in zip(policies, histories, together, strict=True):
        alone = generate(model, [history], policy, exclude="seen", beams=4)
        np.testing.assert_array_equal(slate.items, alone.items)


def test_slates_of_different_length_in_one_batch(model, histories, new):
    lengths = [1, 4, 7, 2, 3, 6]
    several = [spdd.SPDD([Objective("new", new, at_least=min(2, n))], slots=n) for n in lengths]
    slates = generate(model, histories, several)
    assert [s.items.shape[1] for s in slates] == lengths
    for policy, history, slate in zip(several, histories, slates, strict=True):
        np.testing.assert_array_equal(slate.items, generate(model, [history], policy).items)
        assert slate.status == spdd.MET


@pytest.mark.parametrize(
    "options", [{"cache_implementation": "static"}, {"use_cache": False}, {"cache_implementation": "dynamic"}]
)
@pytest.mark.parametrize("beams", [1, 3])
def test_any_cache(model, policies, histories, options, beams):
    want = generate(model, histories, policies[0], beams=beams)
    np.testing.assert_array_equal(generate(model, histories, policies[0], beams=beams, **options).items, want.items)


def test_static_cache_through_the_processor(model, policies, histories):
    menu, plans = prepare(Menu.of(model.catalog, first=model.first), policies[:1])
    inputs, seen = asked(model, histories, menu)
    processor = SlateProcessor(plans[0], inputs["input_ids"].shape[1], exclude=seen)
    say = {"logits_processor": [processor], "max_new_tokens": plans[0].tokens, "do_sample": False}
    want = processor.slates(model.lm.generate(**inputs, **say)).items
    got = processor.slates(
        model.lm.generate(**inputs, **say, cache_implementation="static", disable_compile=True)
    ).items
    np.testing.assert_array_equal(got, want)


def legal(slate, seen, new=None, floor=0):
    """Every row full, of open items, none twice, and floors met."""
    items = slate.items
    assert (items >= 0).all()
    assert (np.diff(np.sort(items, 1), axis=1) > 0).all()
    for row, out in zip(items, seen, strict=True):
        assert not np.isin(row, out).any()
    if new is not None:
        assert (new[items].sum(1) >= floor).all()
        assert (slate.status == spdd.MET).all()


@pytest.mark.parametrize("beams", [2, 5])
def test_beam_search_of_transformers(model, policies, histories, new, beams):
    """Beams are re-ordered behind the processor's back; every hypothesis is a slate that keeps its promise."""
    menu, plans = prepare(Menu.of(model.catalog, first=model.first), policies[:1])
    inputs, seen = asked(model, histories, menu)
    processor = SlateProcessor(plans[0], inputs["input_ids"].shape[1], exclude=seen)
    out = model.lm.generate(
        **inputs, logits_processor=[processor], max_new_tokens=plans[0].tokens, num_beams=beams, num_return_sequences=beams,
        do_sample=False, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    slates = processor.slates(out.sequences)
    legal(slates, [s for s in seen for _ in range(beams)], new, 3)
    # The score of a hypothesis is what its items are worth by themselves, whatever path led to it.
    assert torch.isfinite(out.sequences_scores).all()
    best = out.sequences_scores.unflatten(0, (len(histories), beams))
    assert (best.diff(dim=1) <= 1e-6).all()


def test_one_beam_is_greedy(model, policies, histories):
    menu, plans = prepare(Menu.of(model.catalog, first=model.first), policies[:1])
    inputs, seen = asked(model, histories, menu)
    processor = SlateProcessor(plans[0], inputs["input_ids"].shape[1], exclude=seen)
    # Twice the sequences from sampling so cold that it is greedy.
    out = model.lm.generate(
        **inputs, logits_processor=[processor], max_new_tokens=plans[0].tokens, do_sample=True, temperature=1e-5,
        num_return_sequences=2, top_k=0,
    )  # fmt: skip
    want = generate(model, histories, policies[0], exclude="seen", menu=menu).items
    np.testing.assert_array_equal(processor.slates(out).items, want.repeat(2, 0))


def test_assisted_decoding(model, policies, histories):
    """A draft model proposes, the processor is called again for what was rejected: the slate is the greedy one."""
    menu, plans = prepare(Menu.of(model.catalog, first=model.first), policies[:1])
    draft = small_llama(model.catalog, width=16, layers=1, heads=2, dropout=0.0, seed=5).lm
    for history in histories[:3]:
        inputs, seen = asked(model, [history], menu)
        processor = SlateProcessor(plans[0], inputs["input_ids"].shape[1], exclude=seen)
        say = {"logits_processor": [processor], "max_new_tokens": plans[0].tokens, "do_sample": False}
        out = model.lm.generate(**inputs, **say, assistant_model=draft)
        np.testing.assert_array_equal(out, model.lm.generate(**inputs, **say))


def test_left_padding_changes_nothing(model, policies, histories):
    want = [generate(model, [h], policies[0]).items[0] for h in histories]
    np.testing.assert_array_equal(generate(model, histories, policies[0]).items, want)


def test_an_end_is_written_behind_a_full_slate_and_only_there(model, histories, new):
    """Rows end at different times; those that are finished are padded, and read back as they were."""
    menu = Menu.of(model.catalog, first=model.first, end=1, columns={"new": new})
    plans = [Plan.of(menu, {"slots": n, "objectives": [{"name": "new", "at_least": 1}]}) for n in (2, 5, 3, 2, 4, 1)]
    inputs, _ = asked(model, histories, menu)
    processor = SlateProcessor(plans, inputs["input_ids"].shape[1])
    out = model.lm.generate(
        **inputs, logits_processor=[processor], max_new_tokens=40, do_sample=False, eos_token_id=1, pad_token_id=0
    )
    written = out[:, inputs["input_ids"].shape[1] :]
    for row, plan, slate in zip(written.tolist(), plans, processor.slates(out), strict=True):
        assert row.index(1) == plan.tokens - 1
        assert slate.items.shape == (1, plan.slots)
        assert slate.status == spdd.MET
    want = [generate(model, [h], p).items for h, p in zip(histories, plans, strict=True)]
    for slate, items in zip(processor.slates(out), want, strict=True):
        np.testing.assert_array_equal(slate.items, items)


def test_marks_between_items(model, histories, new):
    menu = Menu.of(model.catalog, first=model.first, between=[1, 0], columns={"new": new})
    plan = Plan.of(menu, {"slots": 4, "objectives": [{"name": "new", "at_least": 2}]})
    inputs, _ = asked(model, histories, menu)
    processor = SlateProcessor(plan, inputs["input_ids"].shape[1])
    out = model.lm.generate(**inputs, logits_processor=[processor], max_new_tokens=plan.tokens, do_sample=False)
    words = out[:, inputs["input_ids"].shape[1] :]
    assert words.shape[1] == plan.tokens == 4 * 3 + 3 * 2
    assert (words[:, [3, 8, 13]] == 1).all()
    assert (words[:, [4, 9, 14]] == 0).all()
    for beams in (1, 3):
        slate = generate(model, histories, plan, beams=beams)
        legal(slate, [[]] * len(histories), new, 2)
        if beams == 1:
            np.testing.assert_array_equal(slate.items, processor.slates(out).items)


HOSTILE = [
    {"do_sample": True, "temperature": 2.0, "top_k": 50, "top_p": 0.9},
    {"do_sample": True, "temperature": 2.0, "top_k": 1, "top_p": 0.01},
    {"do_sample": True, "temperature": 50.0, "top_k": 0, "top_p": 1.0, "min_p": 0.99},
    {"do_sample": True, "typical_p": 0.1, "epsilon_cutoff": 0.9, "eta_cutoff": 0.9},
    {"do_sample": False, "repetition_penalty": 5.0, "no_repeat_ngram_size": 1},
    {"do_sample": True, "suppress_tokens": list(range(2, 26))},  # of all ids, as a hostile file may have it
    {"do_sample": False, "bad_words_ids": [[t] for t in range(2, 20)]},
]


@pytest.mark.parametrize("settings", HOSTILE, ids=lambda s: ",".join(s))
def test_hostile_settings_never_yield_an_illegal_id(model, policies, histories, new, settings):
    menu, plans = prepare(Menu.of(model.catalog, first=model.first), policies[:1])
    inputs, seen = asked(model, histories, menu)
    processor = SlateProcessor(plans[0], inputs["input_ids"].shape[1], exclude=seen)
    config = GenerationConfig(**settings, max_new_tokens=plans[0].tokens, pad_token_id=1)
    torch.manual_seed(0)
    out = model.lm.generate(**inputs, logits_processor=[processor], generation_config=config)
    legal(processor.slates(out), seen, new, 3)
    out = model.lm.generate(
        **inputs, custom_generate=fill_slates, menu=menu, rows=begin(plans[0], 6, seen), generation_config=config
    )
    legal(processor.slates(out), seen, new, 3)


@pytest.mark.slow
def test_a_hundred_thousand_items_under_hostile_sampling(new, old):
    """A model whose own settings say temperature 2, top-k and top-p: only ids of items, none twice or seen, floors met in every row."""
    catalog = Catalog.of(np.random.default_rng(0).integers(0, 8, (M, 3)), sizes=[8] * 3)
    lm = small_llama(catalog, width=16, layers=1, heads=2, dropout=0.0).lm
    lm.generation_config = GenerationConfig(do_sample=True, temperature=2.0, top_k=40, top_p=0.95, pad_token_id=1)
    menu = Menu.of(catalog, first=2, columns={"new": new, "old": old})
    stated = [
        {"slots": 10, "objectives": [{"name": "new", "at_least": 3}]},
        {"slots": 10, "objectives": [{"name": "new", "at_least": 4}, {"name": "old", "at_most": 3}]},
    ]
    plans = [Plan.of(menu, p) for p in stated]
    rng, rows, done = np.random.default_rng(0), 2500, 0
    for turn in range(4):
        torch.manual_seed(turn)
        seen = [rng.integers(0, M, 20) for _ in range(rows)]
        prompts = torch.from_numpy(rng.integers(2, menu.vocabulary, (rows, 2)))
        mix = [plans[i % 2] for i in range(rows)]
        processor = SlateProcessor(mix, 2, exclude=seen)
        out = lm.generate(
            prompts, attention_mask=torch.ones_like(prompts), logits_processor=[processor], max_new_tokens=30
        )
        ids = set(map(tuple, menu.spell(np.arange(M)).tolist()))
        assert all(tuple(x) in ids for x in out[:, 2:].reshape(-1, 3).tolist())
        final = processor.replay(out)
        for which, plan in enumerate(plans):
            own = np.arange(which, rows, 2)
            from spdd.engines.rows import take

            slate = plan.slate(take(final, own))
            legal(slate, [seen[i] for i in own], new, 3 + which)
            if which:
                assert (old[slate.items].sum(1) <= 3).all()
            done += slate.items.size
    assert done == 100_000


def test_drawn_slates_do_not_depend_on_their_batch(model, policies, histories):
    seeds = [11, 12, 13, 14, 15, 16]
    say = {"temperature": 1.5, "top_p": 0.9}
    together = generate(model, histories, policies[0], seed=seeds, **say)
    turned = generate(model, histories[::-1], policies[0], seed=seeds[::-1], **say)
    np.testing.assert_array_equal(together.items, turned.items[::-1])
    other = generate(model, histories, policies[0], seed=[s + 100 for s in seeds], **say)
    assert (together.items != other.items).any(1).all()
    assert (together.status == spdd.MET).all()


def test_draws_follow_the_models_probabilities(model):
    """The first item of many drawn slates: as often as the model says, over the items of the catalog."""
    n = 4000
    slate = generate(model, [[3]] * n, spdd.Greedy(slots=1), temperature=1.0, seed=0)
    menu = Menu.of(model.catalog, first=model.first)
    leaf = menu.spell(slate.items[:, 0])
    found = {tuple(x) for x in leaf.tolist()}
    for ids in sorted(found, key=lambda x: -(leaf == x).all(1).sum())[:5]:
        share = (leaf == ids).all(1).mean()
        row = np.flatnonzero((leaf == ids).all(1))[0]
        held = (menu.spell(np.arange(M)) == ids).all(1).sum()
        p = np.exp(slate.relevance[row, 0]) * held
        assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / n) + 1e-3


def test_a_model_with_an_encoder(new):
    """TIGER-like: T5 reads, and spells the slate. Prompts of the decoder are one token long."""
    catalog = Catalog.of(np.random.default_rng(0).integers(0, 8, (M, 3)), sizes=[8] * 3)
    menu = Menu.of(catalog, first=2, columns={"new": new})
    config = T5Config(
        vocab_size=menu.vocabulary, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm = T5ForConditionalGeneration(config).eval()
    plan = Plan.of(menu, {"slots": 4, "objectives": [{"name": "new", "at_least": 2}]})
    prompts = [[5, 6, 7], [9], [4, 4, 4, 4]]
    slate = generate(lm, prompts, plan, menu=menu)
    legal(slate, [[]] * 3, new, 2)
    legal(generate(lm, prompts, plan, menu=menu, beams=4), [[]] * 3, new, 2)
    processor = SlateProcessor(plan, 1)
    ids = torch.tensor([[5, 6, 7, 0], [9, 0, 0, 0], [4, 4, 4, 4]])
    out = lm.generate(
        ids, attention_mask=(ids != 0).long(), logits_processor=[processor], max_new_tokens=plan.tokens, do_sample=False
    )
    np.testing.assert_array_equal(processor.slates(out).items, slate.items)


def test_traffic_learns_from_what_was_served(model, histories, new):
    decoder = spdd.SPDD([Objective("new", new, at_least="40%", per="traffic")], slots=5, traffic_rate=1.0)
    first = generate(model, histories, decoder)
    price = decoder.traffic.price[0]
    for _ in range(6):
        last = generate(model, histories, decoder)
    assert decoder.traffic.price[0] > price
    assert last.gained.mean() > first.gained.mean()


# ---- what is refused, before a token is generated -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ({"objectives": [{"name": "nwe", "at_least": 1}]}, "needs the column 'nwe'.*There is: new"),
        ({"objectives": [{"name": "new", "at_lest": 1}]}, "Did you mean `at_least`"),
        ({"decoder": "mmr", "settings": {"embeddings": "x"}}, "must be one of spdd, must-fill, greedy, wa, got 'mmr'"),
        ({"slots": 4, "objectives": [{"name": "new", "at_least": 5}]}, "no slate of 4 items.*where 4 is the most"),
        ({"objectives": [{"name": "a", "kind": "per_group", "column": "artist", "most": 1}]}, "depends on the slate"),
        ({"settings": {"scale": "probability"}}, "`scale` must be one of log_probability"),
        ({"settings": {"start": "warm"}}, "nothing is scored yet"),
        (spdd.SPDD([Objective("new", [1, 0, 1], at_least=1)]), r"must have shape \(300,\).*got \(3,\)"),
        (spdd.SPDD([Objective("new", lambda chosen: chosen, at_least=1)]), "depends on the slate"),
        (spdd.EPR([Objective("new", "new")]), "must be SPDD, MustFill, Greedy or WA, got EPR"),
        (7, "a policy must be a decoder, the path of a policy file"),
        ("policy.toml", "cannot be read"),
        ([spdd.Greedy()], "one for each of 2 prompts, got 1"),
        (
            spdd.SPDD([Objective("a", "new", at_least=1), Objective("b", "new", at_most=2)]),
            "objectives 'a' and 'b' have the same values",
        ),
    ],
)
def test_bad_policies_are_refused(model, new, policy, complaint, monkeypatch):
    menu = Menu.of(model.catalog, first=model.first, columns={"new": new})
    monkeypatch.setattr(model.lm, "forward", None)  # not even read
    with pytest.raises((ValueError, TypeError), match=complaint):
        generate(model, [[1], [2]], policy, menu=menu)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"prompts": []}, "at least one prompt"),
        ({"prompts": [[]]}, "at least one token"),
        ({"prompts": [[999]]}, "tokens from 0 to 25, got up to 999"),
        ({"prompts": [["a"]]}, "whole numbers"),
        ({"prompts": [2, 3]}, r"one row alone is \[prompt\]"),
        ({"prompts": "hello"}, "give `tokenizer` too"),
        ({"menu": None}, "`menu` must say which items"),
        ({"exclude": "seen"}, "`exclude` must be one list"),
        ({"exclude": [[300]]}, "from 0 to 299"),
        ({"exclude": [[1], [2]]}, "for each of 1 rows"),
        ({"exclude": [["a"]]}, "lists of item numbers"),
        ({"beams": 0}, "`beams` must be a whole number of at least 1"),
        ({"beams": 2, "temperature": 1.0, "seed": 1}, "`beams` must be 1 where slates are drawn"),
        ({"temperature": -1.0, "seed": 1}, "`temperature` must be a positive number"),
        ({"max_new_tokens": 5}, "a slate takes 30 tokens, but `generate` may write 5"),
        ({"model": torch.nn.Linear(2, 2)}, "transformers model"),
    ],
)
def test_bad_calls_are_refused(model, given, complaint):
    menu = Menu.of(model.catalog, first=model.first)
    say = {"model": model.lm, "prompts": [[2, 3]], "policy": spdd.Greedy(), "menu": menu, **given}
    with pytest.raises((ValueError, TypeError), match=complaint):
        generate(**say)


def test_a_menu_of_another_vocabulary_is_refused(model):
    menu = Menu.of(model.catalog, first=model.first + 1)
    with pytest.raises(ValueError, match="a vocabulary of at least 27 tokens, but the model's has 26"):
        generate(model.lm, [[2]], spdd.Greedy(), menu=menu)


def test_a_row_that_cannot_be_served_is_a_status(model, histories, new):
    """All new items but one are excluded in row 0: it gets as close as it can, and the others are served as ever."""
    floor = spdd.SPDD([Objective("new", new, at_least=3)], slots=5)
    out = [np.flatnonzero(new)[1:], [], []]
    slate = generate(model, histories[:3], floor, exclude=out)
    assert slate.status.tolist() == [spdd.IMPOSSIBLE, spdd.MET, spdd.MET]
    assert slate.reachable[:, 0].tolist() == [1, 5, 5]
    assert slate.gained[:, 0].tolist()[0] == 1


def test_a_processor_for_other_prompts_is_refused(model, policies):
    menu, plans = prepare(Menu.of(model.catalog, first=model.first), policies[:2])
    with pytest.raises(ValueError, match="made for prompts of 9 tokens, but is called with 2"):
        SlateProcessor(plans, 9)(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, menu.vocabulary))
    with pytest.raises(ValueError, match="made for 2 prompts, but is called with 3 rows"):
        SlateProcessor(plans, 1)(torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, menu.vocabulary))
