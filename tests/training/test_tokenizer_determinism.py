import pytest

from lmctr.training.tokenizers import train_tokenizer

TEXTS = [f"Heat {n} (1995) (Action, Crime)" for n in range(50)] + [
    "Alien café",
    "Toy Story 星",
    "Casino royale returns",
]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_the_same_texts_give_the_same_ids(kind):
    first = train_tokenizer(TEXTS, kind, 400)
    for _ in range(4):
        assert train_tokenizer(TEXTS, kind, 400).get_vocab() == first.get_vocab()


def test_wordpiece_pieces_are_not_special():
    tokenizer = train_tokenizer(TEXTS, "wordpiece", 400)
    assert sorted(tokenizer.all_special_tokens) == ["[CLS]", "[MASK]", "[PAD]", "[SEP]", "[UNK]"]
    assert len(tokenizer.added_tokens_decoder) == 5
    assert tokenizer.tokenize("heat ##a") == ["heat", "#", "#", "a"]
    assert tokenizer.decode(tokenizer("Casino heat")["input_ids"], skip_special_tokens=True) == "casino heat"
