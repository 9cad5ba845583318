"""LM-Rec: what it spells is legal, what it proposes is the best there is, and reading on is reading afresh."""

import math

import numpy as np
import pytest
import torch

import spdd
from spdd import MET, SPDD, Objective
from spdd.catalog import Catalog
from spdd.data.interactions import Items, Sequences, Split
from spdd.models import lmrec, lora
from spdd.models.lmtask import LMTask, ranks, sample
from spdd.models.spelling import best_items
from spdd.models.train import Settings, fit

transformers = pytest.importorskip("transformers")


def ids(items=60, sizes=(4, 4, 4), seed=0):
    random = np.random.default_rng(seed)
    return Catalog.of(np.stack([random.integers(0, size, items) for size in sizes], 1), sizes=sizes)


def tiny(catalog=None, **settings):
    about = {"width": 32, "layers": 2, "heads": 2, "dropout": 0.0, "history": 60, "beams": 60} | settings
    return lmrec.small_llama(ids() if catalog is None else catalog, **about)


HISTORIES = [[3, 1, 4], [1, 5, 9, 2, 6], [5], [], [-1, 3, -1, 5]]


def every_item(model, histories):
    """(R, M) log p of all items: the model asked for each token of each item, without cache, beams or tree."""
    catalog, out = model.catalog, []
    for history in histories:
        read = [i for i in history if i >= 0][-model.history :]
        begun = torch.tensor([model.bos, *model.spelled[read].flatten().tolist()]).expand(model.items, -1)
        logits = model.lm(input_ids=torch.cat([begun, model.spelled[:-1]], 1)).logits.double()
        row = []
        for item, ours in enumerate(logits[:, -catalog.depth - 1 : -1, model.first :]):
            tokens, total = catalog.tokens[item], 0.0
            for place in range(catalog.depth):
                same = (catalog.tokens[:, :place] == tokens[:place]).all(1)
                at = ours[place, model.offsets[place] :]
                total += float(at[tokens[place]] - at[catalog.tokens[same, place].unique()].logsumexp(0))
            row.append(total - math.log(int((catalog.tokens == tokens).all(1).sum())))
        out.append(row)
    return torch.tensor(out, dtype=torch.float64)


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(scope="module")
def truth(model):
    with torch.no_grad():
        return every_item(model, HISTORIES)


# ---- what is proposed --------------------------------------------------------------------------------------


def test_log_probabilities_are_those_of_the_tokens_and_sum_to_one(model, truth):
    items, logits = model.propose(model.start(HISTORIES))
    torch.testing.assert_close(logits.gather(1, items.argsort(1)), truth, rtol=0, atol=1e-4)
    torch.testing.assert_close(logits.exp().sum(1), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-5)
    assert torch.equal(items.sort(1).values, torch.arange(60).expand(5, -1))


def test_only_open_items_are_proposed_and_every_row_with_one_gets_one(model):
    open_ = torch.rand(5, 60, generator=torch.Generator().manual_seed(2)) < 0.1
    open_[0] = False
    open_[1] = torch.arange(60) == 17
    narrow = tiny(beams=1)
    for which in (model, narrow):
        items, logits = which.propose(which.start(HISTORIES), open_)
        assert items[0].unique().tolist() == [-1]
        assert items[1, 0] == 17
        there = items >= 0
        assert there[1:, 0].all()
        assert open_.gather(1, items.clamp_min(0))[there].all()
        assert torch.isfinite(logits[there]).all()
    items, _ = model.propose(model.start(HISTORIES), open_)
    assert (items >= 0).sum(1).tolist() == open_.sum(1).tolist()


def test_a_bonus_steers_the_search_and_is_no_part_of_log_p(model, truth):
    bonus = torch.randn(5, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    items, logits = model.propose(model.start(HISTORIES), None, bonus)
    score = logits + bonus.gather(1, items)
    assert (score.diff(dim=1) <= 0).all()
    torch.testing.assert_close(logits, truth.gather(1, items), rtol=0, atol=1e-4)


@pytest.mark.parametrize("mean_of_open", [True, False])
def test_beams_are_paid_the_mean_below_their_prefix(mean_of_open):
    """Against a search by the book, with few beams, used items and items that share an id."""
    catalog, random = ids(items=80, sizes=(3, 3, 3), seed=1), torch.Generator().manual_seed(5)
    tables = [torch.randn(4**place, 9, generator=random).double() for place in range(3)]  # by the prefix spelled
    open_ = torch.rand(2, 80, generator=random) < 0.5
    bonus = torch.randn(2, 80, generator=random).double() * 2
    spelled = [torch.zeros(2, 1, dtype=torch.int64)]

    def extend(parent, word):
        here = spelled[0].gather(1, parent) * 4 + word % 3 + 1
        spelled[0] = here
        return tables[(here.max() >= 4).int() + 1][here % 64 if here.max() >= 4 else here]

    tables[2] = torch.randn(64, 9, generator=random).double()
    got, logits = best_items(
        catalog, tables[0].expand(2, -1), extend, 2, open_, bonus, mean_of_open, catalog.collisions().largest
    )
    for row in range(2):
        beams = [((), 0.0)]
        for place in range(3):
            grown = []
            for prefix, total in beams:
                code = 0
                for token in prefix:
                    code = code * 4 + token + 1
                legal = sorted({t[place] for t in catalog.tokens.tolist() if tuple(t[:place]) == prefix})
                at = tables[place][code][[3 * place + t for t in legal]].log_softmax(0).tolist()
                grown += [((*prefix, t), total + x) for t, x in zip(legal, at, strict=True)]

            def below(prefix, place=place):
                return [j for j, t in enumerate(catalog.tokens.tolist()) if tuple(t[: place + 1]) == prefix]

            def paid(prefix, row=row, below=below):
                counted = [j for j in below(prefix) if open_[row, j] or not mean_of_open]
                return float(bonus[row, counted].mean())

            grown = [g for g in grown if any(open_[row, j] for j in below(g[0]))]
            beams = sorted(grown, key=lambda g: -g[1] - paid(g[0]))[:2]
        found = [
            (total - math.log(len(below(prefix))) + float(bonus[row, j]), j, total - math.log(len(below(prefix))))
            for prefix, total in beams
            for j in below(prefix)
            if open_[row, j]
        ]
        want = sorted(found, reverse=True)[:2]
        there = got[row] >= 0
        assert got[row][there].tolist() == [j for _, j, _ in want]
        torch.testing.assert_close(logits[row][there], torch.tensor([x for _, _, x in want], dtype=torch.float64))


# ---- reading on --------------------------------------------------------------------------------------------


def test_reading_on_is_reading_afresh():
    """30 items in a row, with beams in between: the same slates and log-probabilities as from the whole history."""
    model, histories = tiny(beams=5), HISTORIES[:3]

    class Afresh:
        items, device = model.items, model.device

        def start(self, histories):
            return [list(h) for h in histories]

        def propose(self, state, open_, bonus):
            return model.propose(model.start(state), open_, bonus)

        def advance(self, state, items):
            return [[*row, item] for row, item in zip(state, items.tolist(), strict=True)]

    new = Objective("new", (torch.arange(60) % 5 == 0).float(), at_least=9)
    decoder = SPDD([new], slots=30)
    on, afresh = (decoder.generate(m, histories, exclude="seen") for m in (model, Afresh()))
    assert torch.equal(on.items, afresh.items)
    torch.testing.assert_close(on.relevance, afresh.relevance, rtol=0, atol=1e-4)
    assert (on.status == MET).all()


def test_rows_do_not_know_each_other(model):
    together = model.propose(model.start(HISTORIES))[1]
    for row, history in enumerate(HISTORIES):
        torch.testing.assert_close(model.propose(model.start([history]))[1][0], together[row], rtol=0, atol=1e-5)


def test_a_slot_reads_the_words_of_one_item_and_searches_once(monkeypatch):
    model, read = tiny(beams=4), []
    inner = model.lm.forward
    monkeypatch.setattr(model.lm, "forward", lambda **k: read.append(k["input_ids"].shape[1]) or inner(**k))
    spdd.Greedy(slots=5).generate(model, HISTORIES)
    # The first prices ask once more than there are slots; a search reads two places of four beams.
    assert read == [1 + 3 * 5, 4, 4, *([4, 4, 3] * 4), 4, 4]


def test_only_the_last_items_of_a_history_are_read():
    model = tiny(history=3)
    short, long = (model.propose(model.start([h]))[1] for h in ([7, 8, 9], [1, 2, 3, -1, 7, 8, 9]))
    torch.testing.assert_close(short, long, rtol=0, atol=1e-5)


# ---- slates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "beams"), [("logit", 1), ("relative", 3), ("probability", 10)])
def test_promises_are_kept_whatever_the_search_finds(scale, beams):
    catalog = ids(items=200, sizes=(8, 8))
    model = tiny(catalog, beams=beams)
    new = Objective("new", (torch.arange(200) % 10 == 0).float(), at_least="50%")
    slate = SPDD([new], slots=6, scale=scale).generate(model, HISTORIES, exclude="seen", trace=True)
    assert (slate.status == MET).all()
    for row, history in zip(slate.items.tolist(), HISTORIES, strict=True):
        assert len(set(row)) == 6
        assert not set(row) & set(history)


def test_ids_of_one_token_are_plain_items():
    model = tiny(Catalog.of(torch.arange(40)))
    items, logits = model.propose(model.start(HISTORIES))
    plain = model.start(HISTORIES).logits.double().log_softmax(1)
    torch.testing.assert_close(logits, plain.gather(1, items))
    assert torch.equal(spdd.Greedy(slots=1).generate(model, HISTORIES).items[:, 0], plain.argmax(1))


# ---- learning ----------------------------------------------------------------------------------------------


def walks(users=150, items=60, seed=0):
    """Users who go round: after item i comes i + 1."""
    random = np.random.default_rng(seed)
    rows = [(random.integers(items) + np.arange(random.integers(4, 9))) % items for _ in range(users)]

    def part(cut):
        held = [r[cut] for r in rows]
        start = np.cumsum([0, *map(len, held)])
        user = np.array([f"{u:04d}" for u in range(users)])
        return Sequences(user, start, np.concatenate(held), np.arange(start[-1]), {})

    names = np.array([f"{i:04d}" for i in range(items)])
    return Split(Items(names, {}), part(slice(0, -2)), part(slice(-2, -1)), part(slice(-1, None)))


def test_training_learns_what_comes_next_and_a_checkpoint_keeps_it(tmp_path):
    split = walks()
    model = tiny(ids(sizes=(8, 8)), layers=1, history=6, beams=10)
    task = LMTask(model, split, batch=50, passes=8, validate_on=50)
    before = task.validate()
    fitted = fit(task, Settings(epochs=2, rate=1e-2), tmp_path / "run", progress=False)
    assert fitted.best["recall@10"] > max(0.8, 2 * before["recall@10"])
    again = lmrec.load(tmp_path / "run" / "best.pt", fingerprint=split.items.fingerprint(), beams=10)
    for a, b in zip(model.propose(model.start(HISTORIES)), again.propose(again.start(HISTORIES)), strict=True):
        assert torch.equal(a, b)


def test_what_is_not_proposed_is_no_hit_however_few_beams_there_are():
    split, model = walks(), tiny(beams=2)
    histories, target = sample(split, "validation", 50)
    proposed = model.propose(model.start(histories))[0]
    place = ranks(model, histories, target)
    missed = (proposed != torch.from_numpy(target)[:, None]).all(1).numpy()
    assert missed.any()
    assert (place[missed] == model.items).all()
    assert (place[~missed] < 2).all()


def test_an_epoch_shows_every_item_once_whatever_the_number_of_processes():
    split = walks(users=31)
    task = LMTask(tiny(history=4), split, batch=4, validate_on=5)
    counts = []
    for world in (1, 2):
        seen, batches = np.zeros(len(split.train.item), int), []
        for rank in range(world):
            batches.append(0)
            for begin, size, longest in task.batches(3, rank, world):
                batches[-1] += 1
                assert int(size.max()) == longest <= 5
                for b, s in zip(begin.tolist(), size.tolist(), strict=True):
                    seen[b : b + s] += 1
        assert len(set(batches)) == 1
        counts.append(seen)
    assert (counts[0] == 1).all()
    assert counts[1].max() == 1


def test_padding_changes_no_loss():
    model = tiny()
    rows = torch.tensor([[3, 1, 4, 1], [5, 9, -1, -1]])
    parts = [model.loss(rows[:1]), model.loss(rows[1:, :2])]
    torch.testing.assert_close(model.loss(rows), (parts[0] * 4 + parts[1] * 2) / 6)


def test_ids_of_other_items_are_refused():
    with pytest.raises(ValueError, match=r"the ids are of 50 items .* the split has 60"):
        LMTask(tiny(ids(items=50)), walks())


# ---- any language model ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied head"])
def pretrained(tmp_path_factory, request):
    """A folder with a small Llama and a tokenizer of a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("lm")
    words = {"<s>": 0, "</s>": 1, "the": 2, "tent": 3, "bike": 4}
    inner = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=16,  # more than the tokenizer knows, as usual
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=request.param,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_any_language_model_learns_the_tokens(pretrained, attention):
    model = lmrec.from_path(pretrained, ids(), beams=60, attn_implementation=attention)
    assert model.tokenizer.convert_ids_to_tokens([5, 9, 16]) == ["<a_0>", "<b_0>", "<c_3>"]
    assert model.tokenizer("the <b_0>")["input_ids"][-1] == model.first + 4
    items, logits = model.propose(model.start(HISTORIES))
    with torch.no_grad():
        torch.testing.assert_close(logits.gather(1, items.argsort(1)), every_item(model, HISTORIES), rtol=0, atol=1e-4)


def test_adapters_learn_alone_and_merge_into_a_plain_model(pretrained, tmp_path):
    whole = lmrec.from_path(pretrained, ids(), beams=10)
    model = lmrec.from_path(pretrained, ids(), beams=10, rank=2)
    torch.testing.assert_close(whole.start(HISTORIES).logits, model.start(HISTORIES).logits)  # adapters begin at 0
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    task = LMTask(model, walks(), batch=50, validate_on=5)
    fit(task, Settings(epochs=2, rate=1e-2, optimizer="adamw", decay=0.1), tmp_path / "run", progress=False)
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
    learnt = model.start(HISTORIES).logits
    assert not torch.allclose(learnt, whole.start(HISTORIES).logits, atol=1e-2)
    model.save_adapter(tmp_path / "adapter.pt")
    other = lmrec.from_path(pretrained, ids(), beams=10, rank=2).load_adapter(tmp_path / "adapter.pt")
    torch.testing.assert_close(other.start(HISTORIES).logits, learnt)
    kept = lmrec.load(tmp_path / "run" / "best.pt")
    torch.testing.assert_close(kept.start(HISTORIES).logits, learnt)
    model.merge().lm.save_pretrained(tmp_path / "merged")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    model.lm = plain
    torch.testing.assert_close(model.start(HISTORIES).logits, learnt, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="another rank"):
        lmrec.from_path(pretrained, ids(), rank=3).load_adapter(tmp_path / "adapter.pt")


def test_layers_that_are_not_there_are_named():
    with pytest.raises(ValueError, match=r"must name linear layers of the model, got wq; it has down_proj, "):
        lora.adapt(tiny().lm, layers=["wq"])


def test_a_folder_without_a_language_model_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"`path` must be a folder with a causal language model.* cannot be loaded"):
        lmrec.from_path(tmp_path, ids())


def test_models_that_forget_are_refused():
    config = transformers.MistralConfig(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        sliding_window=8,
    )
    lm = transformers.MistralForCausalLM(config)
    with pytest.raises(ValueError, match=r"must attend to all it has read"):
        lmrec.LMRec(lm, ids(), first=2, bos=0)


def test_items_that_share_an_id_are_told_apart_as_the_catalog_says():
    catalog = Catalog.of([[0, 0]] * 5 + [[1, 0]])
    model = tiny(catalog, beams=6)
    items, logits = model.propose(model.start([[5]]))
    assert items[items < 5].tolist() == [0, 1, 2, 3, 4]
    assert logits[items < 5].unique().numel() == 1
    model = tiny(catalog.preferring(torch.tensor([1, 5, 2, 4, 3, 0])), beams=6)
    items, _ = model.propose(model.start([[5]]))
    assert items[items < 5].tolist() == [1, 3, 4, 2, 0]
