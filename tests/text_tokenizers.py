"""Tiny tokenizers trained on a few words, built like those of BERT, RoBERTa and Qwen."""

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer, RobertaTokenizer

CORPUS = [
    "Movies the user has rated: liked disliked Liked: Disliked: none; Will the user like it?",
    "Heat (1995) (Action, Crime, Thriller)",
    "Casino (1995) (Crime, Drama)",
    "Toy Story (1995) (Adventure, Animation, Children, Comedy, Fantasy)",
    "Alien (1979) (Horror, Sci-Fi) [SINK] [SEP] <s> </s> <|endoftext|>",
    "用户评价过的电影：不喜欢：喜欢：无；用户会喜欢这部电影吗：？",
]
KINDS = ("bert", "roberta", "qwen")


def wordpiece(vocab_size=300, max_length=None):
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # The trainer numbers "##x" pieces at random unless they are listed; only the vocabulary is taken from the result.
    letters = {char for text in CORPUS for char in backend.normalizer.normalize_str(text) if not char.isspace()}
    listed = special + [f"##{char}" for char in sorted(letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=listed, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    limit = {} if max_length is None else {"model_max_length": max_length}
    return BertTokenizer(vocab=backend.get_vocab(), **limit)


def _byte_level_bpe(special):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _vocab_and_merges(backend):
    state = json.loads(backend.to_str())["model"]
    return state["vocab"], [tuple(merge) for merge in state["merges"]]


def roberta(max_length=None):
    vocab, merges = _vocab_and_merges(_byte_level_bpe(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    limit = {} if max_length is None else {"model_max_length": max_length}
    return RobertaTokenizer(vocab=vocab, merges=merges, **limit)


def qwen():
    vocab, merges = _vocab_and_merges(_byte_level_bpe(["<|endoftext|>"]))
    return Qwen2Tokenizer(vocab=vocab, merges=merges)


def plain_fast():
    """A tokenizer that only splits at blanks: "[SEP]" is then a word of its vocabulary."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "movies", "the", "user", "rated:", "heat", "casino", "will", "like"]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


def make(kind):
    return {"bert": wordpiece, "roberta": roberta, "qwen": qwen}[kind]()
