"""The kept state of one user: the behaviours that later scores need, and what the model has computed of them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.models.common.base import weights_version
from lmctr.utils.files import as_path, replacing
from lmctr.utils.measure import size_of
from lmctr.utils.outside import checked, entries

from .fingerprint import model_fingerprint, settings_fingerprint, window_fingerprint
from .registry import DEFAULT_MAX_TOKENS, EncodedHistory, Request, scorer_for
from .statistics import RequestStatistics

if TYPE_CHECKING:
    import numpy as np
    import torch

    from lmctr.statistics import ItemStatistics


_FORMAT = "lmctr user state 1"
_OVERHEAD = 2048  # bytes of a state without behaviours, and of its place among others


class UserState:
    """A user's history, encoded once, extended by new behaviours, kept in a file between requests.

    Scores are always those of the full history: what is encoded stays up to the first token or sink that the model would read otherwise now, the rest
    is encoded again. With CTR-Sink on decoders (order `"recent"`):

    - feedback, `"ordinal"` and `"none"` signals: only the new behaviours are encoded (for `"ordinal"`, all behaviours are kept);
    - `"recency"`: a new behaviour moves every earlier one away from the target, so all but those in the last bucket before and after are encoded again;
    - `"elapsed"`: the same for the behaviours whose time bucket changes between two requests;
    - more than `num_behaviors` behaviours, or more tokens than `max_length`: all is encoded again, as the oldest leave the text; with
      `feedback="groups"` all from the end of the group that grows;
    - `sink_bias_causal=False`: a new sink changes the bias of all earlier ones, so all is encoded again.

    Models that share nothing among candidates (encoders, retrieved histories) keep the behaviours only.

    Args:
        model, processor: as for [`score`]. The state holds on to both.
        history: behaviours so far, oldest first.
        time: the time (seconds) of the requests to come, where the history's encoding depends on it (`"elapsed"`); without it
            such a history is encoded at its first request.
        items: the table of the items' statistics, for a model that reads statistics: the user's own are then counted from the
            behaviours, which name their `"item"`, exactly and over the whole history. Without it candidates bring their `"statistics"`.

    Attributes:
        num_seen: behaviours seen in all. num_kept: those that later scores still need, which are kept.
        reencoded: positions of behaviours that were encoded before and had to be encoded again (or given up) in the last
            `extend` or `score`; 0 when everything could be kept.
        num_encoded: positions that are encoded now.

    Raises:
        ValueError: a family without request scoring, behaviours that the processor refuses; a request of a time before behaviours that
            are kept, where earlier ones were left behind.

    Use a state from one thread at a time.

    Example:

    ```python
    >>> state = UserState(model, processor, history)
    >>> score(model, processor, state, candidates, time=20)
    >>> state.extend([{"text": "Casino (1995)", "time": 21, "feedback": "liked"}])
    >>> state.save("user_7.safetensors")
    >>> state = UserState.load("user_7.safetensors", model, processor)
    ```
    """

    def __init__(
        self,
        model: torch.nn.Module,
        processor: Any,
        history: Sequence[Mapping[str, Any]] = (),
        time: float | None = None,
        items: ItemStatistics | None = None,
    ):
        self._scorer = scorer_for(model, processor)
        self._statistics = None if items is None else RequestStatistics(processor, items)
        self._weights = hash(weights_version(self._scorer.model))
        self._settings = settings_fingerprint(processor)
        self._history: list[dict[str, Any]] = []
        self._encoded: EncodedHistory | None = None
        self.num_seen = 0
        self.reencoded = 0
        if history != ():  # many move to another model, and begin with nothing
            self.extend(history, time, "history")

    def __copy__(self) -> UserState:
        """The same user's state, which goes on by itself; model, processor and table of items are the same objects."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._statistics = copy.copy(self._statistics)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> UserState:
        return self.__copy__()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The behaviours that are kept, oldest first."""
        return [dict(behavior) for behavior in self._history]

    @property
    def last_time(self) -> float | None:
        """The time of the last behaviour; None: there is none."""
        history = self._history
        return history[-1]["time"] if history else None

    @property
    def num_kept(self) -> int:
        return len(self._history)

    @property
    def num_encoded(self) -> int:
        return 0 if self._encoded is None else self._encoded.num_positions

    def extend(
        self, behaviors: Sequence[Mapping[str, Any]], time: float | None = None, name: str = "behaviors"
    ) -> None:
        """Add behaviours, oldest first, all at or after the last one; and encode what they change (see `reencoded`).

        Args:
            behaviors: as the processor takes them. time: see [`UserState`]. name: what errors call the behaviours.

        Raises:
            ValueError: behaviours that the processor refuses; the state is then as before.
        """
        self._check_unchanged([self])
        behaviors = entries(behaviors, name)
        self._scorer.check_behaviors(behaviors, self.last_time, name)
        history = self._history + behaviors
        needed = max(self._scorer.needed(history), min(len(history), 1))  # one that is never read says when it was
        history = history[len(history) - needed :]
        encoded, reencoded = self._scorer.encode(history, self._encoded, time)
        if self._statistics is not None:
            self._statistics.extend(behaviors, name)
        self._history, self.num_seen = history, self.num_seen + len(behaviors)
        self._encoded, self.reencoded = encoded, reencoded

    def score(
        self,
        candidates: Sequence[Mapping[str, Any] | str],
        time: float,
        *,
        similarity: np.ndarray | Sequence[Sequence[float]] | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> torch.Tensor:
        """(C,) logits of candidates; see [`lmctr.serving.score`]."""
        asked = self.request(candidates, time, similarity=similarity, max_tokens=max_tokens)
        logits, self._encoded, self.reencoded = self._scorer.score(*asked)
        return logits

    def request(
        self,
        candidates: Sequence[Mapping[str, Any] | str],
        time: float,
        *,
        similarity: np.ndarray | Sequence[Sequence[float]] | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        is_filled: bool = False,
    ) -> tuple[Request, EncodedHistory | None]:
        """What a scorer takes to score candidates of this user, alone or with requests of others (`RequestScorer.score_many`); what it
        encoded goes back by [`keep`]. `is_filled`: the candidates are those that [`filled`] gave, and nothing was changed since."""
        if not is_filled:
            (candidates,) = self.filled([(self, candidates, time)])
        return Request(self._history, candidates, checked(time, "time"), similarity, max_tokens), self._encoded

    @staticmethod
    def filled(asked: Sequence[tuple[UserState, Sequence[Mapping[str, Any] | str], float]]) -> list[list[Any]]:
        """The candidates of requests of users, of one model, at a time each, with their statistics, which are counted for all at once."""
        UserState._check_unchanged([state for state, _, _ in asked])
        found = []
        for state, candidates, time in asked:
            candidates = entries(candidates, "candidates")
            if 0 < state.num_kept < state.num_seen:
                state._check_times(candidates, checked(time, "time"))
            found.append(candidates)
        those = [state._statistics for state, _, _ in asked]
        if None in those:  # the model reads none
            return found
        return RequestStatistics.fill_many(those, found, [checked(time, "time") for _, _, time in asked])

    def _check_times(self, candidates: Sequence[Any], time: float) -> None:
        """Raise `ValueError` for a time that is not after the behaviours that are kept, in whole seconds, as models read times: the model would miss
        those that were left behind."""
        last = math.floor(self.last_time)
        for place, candidate in enumerate([{"time": time}, *candidates]):
            own = candidate.get("time") if isinstance(candidate, Mapping) else None
            if isinstance(own, (int, float)) and own < last + 1:
                name = f"candidates[{place - 1}]: time" if place else "time"
                raise ValueError(
                    f"{name} {math.floor(own)} is not after the user's last behaviour at {last}, and of {self.num_seen} behaviours the last {self.num_kept} "
                    "are kept; score it with the whole history"
                )

    def keep(self, encoded: EncodedHistory | None, reencoded: int) -> None:
        """Take over what a scorer encoded for a [`request`] of this state, which has not been extended since."""
        self._encoded, self.reencoded = encoded, reencoded

    @property
    def num_bytes(self) -> int:
        """Memory of the state: of its tensors (whole storages, each once) and, estimated, of its behaviours and statistics."""
        tensors = {} if self._encoded is None else self._encoded.tensors()
        storages = {part.data_ptr(): part.nbytes() for part in (t.untyped_storage() for t in tensors.values())}
        counted = 0 if self._statistics is None else self._statistics.user.num_bytes
        return _OVERHEAD + counted + sum(storages.values()) + sum(size_of(behavior) for behavior in self._history)

    def moved_to(
        self, model: torch.nn.Module, processor: Any, items: ItemStatistics | None = None
    ) -> UserState | None:
        """The same user's state for another model, as of a run that went on from the first one's, to be encoded at its next use; None where the
        kept behaviours may not be all that it needs, or where statistics of the whole history cannot be counted again: by another reader, or by a
        table that gives items other categories or numbers."""
        left = self.left()
        if None not in (items, self._statistics) and items.describes_as(self._statistics.user.items):
            left["described"] = items.described
        return UserState.gone_on(left, model, processor, items)

    def left(self, windows: dict[tuple[int, int], str] | None = None) -> dict[str, Any]:
        """What is left of the state without its model and what that encoded; as JSON another process goes on from it ([`gone_on`]).

        windows: for many states at a time: what was worked out for one of the same model and processor.
        """
        windows, made_with = {} if windows is None else windows, (id(self._scorer.model), id(self._scorer.processor))
        if made_with not in windows:
            windows[made_with] = window_fingerprint(self._scorer.window)
        return {
            "num_seen": self.num_seen,
            "settings": self._settings,
            "window": windows[made_with],
            "history": list(self._history),
            "statistics": None if self._statistics is None else self._statistics.user.to_dict(),
            "described": None if self._statistics is None else self._statistics.user.items.described,
        }

    @classmethod
    def gone_on(
        cls, left: Mapping[str, Any], model: torch.nn.Module, processor: Any, items: ItemStatistics | None = None
    ) -> UserState | None:
        """The state for a model of what was [`left`] of one, see [`moved_to`]."""
        state = cls(model, processor, items=items)
        history, before = left["history"], left["statistics"]
        same, is_whole = window_fingerprint(state._scorer.window) == left["window"], len(history) == left["num_seen"]
        if not same and not is_whole:
            return None
        if state._settings != left["settings"]:
            state._scorer.check_behaviors(history, None)
        if items is not None:
            if is_whole:  # counted again, since the table may have other categories of items
                state._statistics.extend(history)
            elif (
                same
                and before is not None
                and before["fingerprint"] == processor.statistics_reader.fingerprint
                and left.get("described", items.described) == items.described
            ):  # what was let go stays counted as it was, by these
                state._statistics.load(before, items)
            else:
                return None
        state._history, state.num_seen = list(history), left["num_seen"]
        return state

    def check_belongs(self, model: torch.nn.Module, processor: Any) -> None:
        """Raise `ValueError` unless the state was made with this model and a processor of the same settings."""
        if not self._scorer.is_of(model):
            raise ValueError(
                "history: the UserState was made with another model object; score it with its own, or make a new one"
            )
        if processor is not self._scorer.processor and settings_fingerprint(processor) != self._settings:
            raise ValueError("history: the UserState was made with another processor; score it with its own")

    @staticmethod
    def _check_unchanged(states: Iterable[UserState]) -> None:
        """Raise `ValueError` unless model and processor are as each state has seen them; they are looked at once for all of their states."""
        seen: dict[tuple[int, int], tuple[int, str]] = {}
        for state in states:
            scorer, made_with = state._scorer, (id(state._scorer._model), id(state._scorer.processor))
            if made_with not in seen:
                seen[made_with] = hash(weights_version(scorer.model)), settings_fingerprint(scorer.processor)
            weights, settings = seen[made_with]
            if weights != state._weights:
                raise ValueError(
                    "the model's weights were changed or moved since the UserState was made, or other adapters act; make a new one from the history"
                )
            if settings != state._settings:
                raise ValueError(
                    "the processor's settings were changed since the UserState was made; make a new one from the history"
                )

    def save(self, path: str | Path) -> Path:
        """Write the state to one safetensors file: tensors, and in its metadata the behaviours (with their texts) and
        fingerprints of model and processor.

        Raises:
            OSError: the file cannot be written.
        """
        from safetensors.torch import save_file

        self._check_unchanged([self])
        path = as_path(path, "path")
        metadata = {
            "format": _FORMAT,
            "model_type": self._scorer.model.config.model_type,
            "model": model_fingerprint(self._scorer.model),
            "processor": settings_fingerprint(self._scorer.processor),
            "history": json_of(self._history),
            "num_seen": str(self.num_seen),
        }
        if self._statistics is not None:
            metadata["statistics"] = json_of(self._statistics.user.to_dict())
            metadata["described"] = self._statistics.user.items.described
        tensors = {} if self._encoded is None else self._encoded.tensors()
        with replacing(path) as temporary:
            save_file(
                {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}, temporary, metadata
            )
        return path

    @classmethod
    def load(
        cls, path: str | Path, model: torch.nn.Module, processor: Any, items: ItemStatistics | None = None
    ) -> UserState:
        """Read a state back.

        Args:
            items: the table of the items' statistics, which may be a newer one; needed where the state counts the user's. A history that is kept
                whole is counted again by it; else it must describe the same items by the same categories and numbers.

        Raises:
            FileNotFoundError: no such file.
            ValueError: no user state, or one of another model (other weights or configuration) or processor (other settings,
                prompt or tokenizer); a table of items for a state that counts no statistics, or none for one that does; one of items described
                otherwise, where behaviours were let go.
        """
        from safetensors import SafetensorError, safe_open

        path = as_path(path, "path")
        if not path.is_file():
            raise FileNotFoundError(f"user state {path} does not exist")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise ValueError(f"{path} is no whole safetensors file ({error}); encode the history again") from error
        if metadata.get("format") != _FORMAT:
            raise ValueError(
                f"{path} is no user state of this version: its format is {metadata.get('format')!r}, not {_FORMAT!r}"
            )
        if (items is None) == ("statistics" in metadata):
            needed = "counts the user's statistics: give" if items is None else "counts no statistics: leave out"
            raise ValueError(f"{path}: the state {needed} the table of the items' statistics (items)")
        state = cls(model, processor, items=items)
        own = state._scorer.model
        for what, found in (("model", model_fingerprint(own)), ("processor", settings_fingerprint(processor))):
            if metadata.get(what) != found:
                raise ValueError(
                    f"{path}: the state was made with another {what} (fingerprint {metadata.get(what)}, this one has "
                    f"{found}); load it with its own {what}, or encode the history again"
                )
        state._history = json.loads(metadata["history"])
        state.num_seen = int(metadata["num_seen"])
        if items is not None and state.num_kept == state.num_seen:  # as in `gone_on`
            state._statistics.extend(state._history)
        elif items is not None:
            if metadata.get("described", items.described) != items.described:
                raise ValueError(
                    f"{path}: of {state.num_seen} behaviours the last {state.num_kept} are kept, and the others were counted by a table (items) of "
                    "other items, or of other categories or numbers of them; load it with that table, or encode the history again"
                )
            state._statistics.load(json.loads(metadata["statistics"]), items)
        if tensors:
            device = next(own.parameters()).device
            moved = {name: tensor.to(device) for name, tensor in tensors.items()}
            state._encoded = state._scorer.encoded_class.from_tensors(moved)
        return state


def json_of(value: Any) -> str:
    """What a state keeps as JSON, on one line, numbers of numpy among it."""
    return json.dumps(value, ensure_ascii=False, default=lambda number: number.item())
