"""Item texts to vectors for the retrieval of similar behaviours."""

from __future__ import annotations

import hashlib
import json
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from safetensors import SafetensorError
from safetensors.numpy import load_file

from lmctr.utils.files import whole_folder
from lmctr.utils.progress import step
from lmctr.utils.tensors import save_tensors

Vectors = np.ndarray | sp.csr_matrix
"""(I, D) vectors, L2-normalised: float32 array, or sparse rows for TF-IDF."""

_CONFIG, _WEIGHTS, _ENCODER = "retriever.json", "retriever.safetensors", "encoder"
# of an encoder: nothing here reads it, and who is given the run may
_NOT_COPIED = shutil.ignore_patterns("*.py", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.joblib")
_FORMAT_VERSION = 1
_MODULES = (
    *("Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm", "WeightedLayerPooling", "WordWeights"),
    *("WordEmbeddings", "StaticEmbedding", "BoW", "CNN", "LSTM", "Router"),
)
_CJK = r"぀-ヿ㐀-鿿가-힯"


class MissingExtraError(ImportError, ValueError):
    """An optional dependency is not installed; the message names the extra."""


class TextRetriever:
    """Turns item texts into L2-normalised vectors, so that an inner product is a cosine. An empty text has the zero vector:
    it is similar to nothing.

    Args:
        encoder: `"tfidf"`: words and pairs of neighbouring words (single characters for Chinese, Japanese, Korean), needs no
            download and must be fitted. Any other text: a sentence-transformers model by name or folder, which needs the extra
            `lmctr[retrieval]`. Or a callable from a list of texts to an (n, D) array.
        max_features: TF-IDF keeps this many terms, the most frequent ones.
        batch_size: texts per call of a sentence-transformers model.

    Raises:
        ValueError: an encoder of another type. MissingExtraError: sentence-transformers is not installed.
    """

    def __init__(
        self,
        encoder: str | Path | Callable[[list[str]], np.ndarray] = "tfidf",
        max_features: int = 50_000,
        batch_size: int = 256,
    ):
        if not (callable(encoder) or (isinstance(encoder, (str, Path)) and str(encoder))):
            raise ValueError(
                f"encoder must be 'tfidf', a sentence-transformers model name or folder, or a callable from texts to "
                f"vectors, got {encoder!r}"
            )
        self.encoder = encoder if callable(encoder) else str(encoder)
        self.kind = "callable" if callable(encoder) else "tfidf" if encoder == "tfidf" else "sentence-transformers"
        self.max_features = max_features
        self.batch_size = batch_size
        self._vectorizer: Any = None
        self._with_marks = True
        self._model: Any = None
        if self.kind == "sentence-transformers":
            self._model = _sentence_transformer(self.encoder)

    @property
    def is_fitted(self) -> bool:
        """Whether `encode` can be called."""
        return self.kind != "tfidf" or self._vectorizer is not None

    def fit(self, texts: Sequence[str | None]) -> TextRetriever:
        """Learn TF-IDF terms and weights from the **training part's** item texts; the other encoders learn nothing here."""
        if self.kind != "tfidf":
            return self
        self._with_marks, vectorizer = True, _tfidf(max_features=self.max_features)
        try:
            vectorizer.fit([text or "" for text in texts])
        except ValueError as error:
            raise ValueError(f"TF-IDF found no words in the {len(texts)} item texts of the training part") from error
        self._vectorizer = vectorizer
        return self

    @step("encoding texts")
    def encode(self, texts: Sequence[str | None], progress: bool = False) -> Vectors:
        """(n, D) L2-normalised vectors of texts.

        Raises:
            ValueError: TF-IDF that was not fitted; a callable whose result has another shape or is not finite.
        """
        clean = [text or "" for text in texts]
        if self.kind == "tfidf":
            if self._vectorizer is None:
                raise ValueError(
                    "the TF-IDF retriever is not fitted; call fit(texts of the training part's items) first"
                )
            return sp.csr_matrix(self._vectorizer.transform(clean), dtype=np.float32)
        if self.kind == "callable":
            vectors = np.asarray(self.encoder(clean), dtype=np.float32)
        else:
            vectors = self._model.encode(
                clean, batch_size=self.batch_size, show_progress_bar=progress, convert_to_numpy=True
            ).astype(np.float32)
        if vectors.ndim != 2 or len(vectors) != len(clean) or not np.isfinite(vectors).all():
            raise ValueError(
                f"the encoder must give one finite vector per text, ({len(clean)}, D), got shape {vectors.shape}"
            )
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
        vectors[np.array([not text.strip() for text in clean], dtype=bool)] = 0
        return vectors

    def similarity(self, queries: Sequence[str | None], texts: Sequence[str | None]) -> np.ndarray:
        """(Q, T) float32 cosines between texts, rounded to six places like those of [`build_retrieval`]."""
        product = self.encode(queries) @ self.encode(texts).T
        return np.round(product.toarray() if sp.issparse(product) else product, 6).astype(np.float32)

    def fingerprint(self) -> str | None:
        """Text that changes with the vectors, or None for a callable, whose code cannot be told apart."""
        if self.kind == "callable":
            return None
        if self.kind == "tfidf":
            state = json.dumps(self._terms()).encode() + np.asarray(self._vectorizer.idf_, dtype=np.float64).tobytes()
        else:
            folder = Path(self.encoder)
            files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
            stamps = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
            state = json.dumps([self.encoder, stamps]).encode()
        return hashlib.sha256(f"{_FORMAT_VERSION} {self.kind} ".encode() + state).hexdigest()

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write the retriever: JSON and safetensors, never pickle. A sentence-transformers model given as a folder is copied,
        one given by name is stored by name.

        Raises:
            ValueError: a callable, which cannot be saved; TF-IDF that was not fitted.
        """
        if self.kind == "callable":
            raise ValueError(
                "a retriever with a callable encoder cannot be saved; build it again where it is needed, or use TF-IDF or a "
                "sentence-transformers model"
            )
        if not self.is_fitted:
            raise ValueError("the TF-IDF retriever is not fitted; there is nothing to save")
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {"format_version": _FORMAT_VERSION, "kind": self.kind, "batch_size": self.batch_size}
        if self.kind == "tfidf":
            config |= {"max_features": self.max_features, "terms": self._terms(), "with_marks": self._with_marks}
            save_tensors({"idf": np.asarray(self._vectorizer.idf_, dtype=np.float64)}, folder / _WEIGHTS)
        elif Path(self.encoder).is_dir():
            shutil.copytree(self.encoder, folder / _ENCODER, dirs_exist_ok=True, ignore=_NOT_COPIED)
            config["encoder"] = None
        else:
            config["encoder"] = self.encoder
        (folder / _CONFIG).write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> TextRetriever:
        """Load what `save_pretrained` wrote.

        Raises:
            FileNotFoundError: a file is missing. ValueError: a file is damaged or of another format.
        """
        folder = Path(directory)
        path = folder / _CONFIG
        if not path.is_file():
            raise FileNotFoundError(f"{folder} holds no {_CONFIG}; it is no saved text retriever")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            kind, version = config["kind"], config["format_version"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        if version != _FORMAT_VERSION or kind not in ("tfidf", "sentence-transformers"):
            raise ValueError(f"{path}: format {version} of kind {kind!r} is not known to this version of lmctr")
        if kind == "sentence-transformers":
            encoder = config["encoder"] or folder / _ENCODER
            if config["encoder"] and (encoder[0] in "/~." or "\\" in encoder or Path(encoder).exists()):
                raise ValueError(
                    f"{path}: encoder is {encoder!r}, a place outside the folder; accepted: a name on the Hub, or null"
                )
            return cls(encoder, batch_size=config["batch_size"])
        path = folder / _WEIGHTS
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing")
        try:
            idf = load_file(path)["idf"]
        except (SafetensorError, KeyError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        terms = config["terms"]
        if len(terms) != len(idf):
            raise ValueError(f"{folder}: {len(terms)} terms, but {len(idf)} weights; the files do not belong together")
        retriever = cls("tfidf", max_features=config["max_features"], batch_size=config["batch_size"])
        vocabulary = {term: column for column, term in enumerate(terms)}
        retriever._with_marks = config.get("with_marks", False)  # as it was fitted
        retriever._vectorizer = _tfidf(retriever._with_marks, vocabulary=vocabulary)
        retriever._vectorizer.idf_ = idf
        return retriever

    def _terms(self) -> list[str]:
        return [str(term) for term in self._vectorizer.get_feature_names_out()]


@cache
def _token_pattern(with_marks: bool) -> str:
    """A word, or one character of Chinese, Japanese or Korean (these have no blanks between words). Marks, such as the vowels of Hindi and
    Thai, are no letters to Python; without them words fall into their consonants."""
    letter = rf"[^\W{_CJK}]"
    pattern = rf"(?u)[{_CJK}]|{letter}+"
    if not with_marks:  # as retrievers were fitted before
        return pattern
    marks = [chr(code) for code in range(0x300, 0x1E000) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    return pattern + rf"(?:[{''.join(marks)}]+{letter}*)*"


def _tfidf(with_marks: bool = True, **options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(token_pattern=_token_pattern(with_marks), ngram_range=(1, 2), dtype=np.float64, **options)


def _sentence_transformer(name: str) -> Any:
    if Path(name).is_dir():
        check_encoder(Path(name))
    try:
        from sentence_transformers import SentenceTransformer, __version__
    except ImportError as error:
        raise MissingExtraError(
            f"the encoder {name!r} needs sentence-transformers; install it with: pip install 'lmctr[retrieval]' "
            f"(or use encoder='tfidf', which needs nothing more)"
        ) from error
    if int(__version__.partition(".")[0]) < 6:
        raise MissingExtraError(
            f"the encoder {name!r} needs sentence-transformers 6 or later, found {__version__}: earlier ones run code that a model's "
            "folder names; pip install 'lmctr[retrieval]'"
        )
    return SentenceTransformer(name, model_kwargs={"use_safetensors": True}, trust_remote_code=False)


def check_encoder(folder: Path) -> None:
    """Raise `ValueError` where a folder of sentence-transformers names other code than that library's own modules."""
    for path in sorted(folder.rglob("*.json")):
        try:
            text = path.read_text(encoding="utf-8")
            found = json.loads(text) if path.name == "modules.json" or '"auto_map"' in text else None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        if isinstance(found, dict) and "auto_map" in found:
            raise ValueError(
                f"{path}: auto_map asks for code from the folder; only the modules of the libraries are loaded"
            )
        if path.name != "modules.json":
            continue
        for entry in found if isinstance(found, list) else [found]:
            kind = entry.get("type") if isinstance(entry, dict) else None
            inner = entry.get("path", "") if isinstance(entry, dict) else None
            package, _, name = str(kind).rpartition(".")
            if package.partition(".")[0] != "sentence_transformers" or name not in _MODULES:
                raise ValueError(
                    f"{path}: a module of the type {kind!r}; accepted: {', '.join(_MODULES)} of sentence_transformers"
                )
            if not isinstance(inner, str) or not (path.parent / inner).resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{path}: the path {inner!r} of a module leaves the folder")


def cached_vectors(
    retriever: TextRetriever, texts: Sequence[str | None], cache_dir: str | Path | None, progress: bool = False
) -> Vectors:
    """Vectors of a catalogue, memory-mapped from `cache_dir` when they are there already. A callable's are never cached."""
    fingerprint = retriever.fingerprint()
    if cache_dir is None or fingerprint is None:
        return retriever.encode(texts, progress)
    digest = hashlib.sha256(fingerprint.encode())
    for text in texts:
        encoded = (text or "").encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    folder = Path(cache_dir) / f"vectors-{digest.hexdigest()[:16]}"
    if not folder.is_dir():
        vectors = retriever.encode(texts, progress)
        parts = {"dense": vectors}
        if sp.issparse(vectors):
            parts = {"data": vectors.data, "indices": vectors.indices, "indptr": vectors.indptr}
            parts["shape"] = np.array(vectors.shape)
        write_folder(folder, parts)
    if (folder / "dense.npy").is_file():
        return np.load(folder / "dense.npy", mmap_mode="r")
    data, indices, indptr, shape = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("data", "indices", "indptr", "shape")
    )
    return sp.csr_matrix((data, indices, indptr), shape=tuple(int(n) for n in shape), copy=False)


def write_folder(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays as npy files so that the folder appears whole or not at all."""
    with whole_folder(folder) as made:
        for name, values in arrays.items():
            np.save(made / f"{name}.npy", values, allow_pickle=False)
