"""Extraction strategies (Eq. 1-2): which events of a user's lifetime a block reads. Plain data in the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmctr.utils.suggest import did_you_mean, refuse_unknown

SAME = "same"
_KEYS = ("name", "behaviors", "scenarios", "window_seconds", "window_days")


@dataclass(frozen=True)
class Strategy:
    """One strategy a_k with names turned into codes.

    Args:
        name: for logs and plots.
        behaviors: behaviour codes that it keeps, None for all.
        scenarios: scenario codes, None for all, or "same": events of the candidate's own scenario.
        window_seconds: keeps events at most this long before the candidate, None for the whole lifetime.
    """

    name: str
    behaviors: tuple[int, ...] | None = None
    scenarios: tuple[int, ...] | str | None = None
    window_seconds: int | None = None


def default_strategies(behavior_names: Sequence[str]) -> list[dict[str, Any]]:
    """One strategy per behaviour type (the paper's Fig. 7), leaving out an unknown one; one for all events if there is one type."""
    known = [name for name in behavior_names if name != "unknown"]
    if len(known) < 2:
        return [{"name": "all"}]
    return [{"name": str(name), "behaviors": [name]} for name in known]


def parse_strategies(
    strategies: Any, behavior_names: Sequence[str], scenario_names: Sequence[str]
) -> tuple[Strategy, ...]:
    """Strategies of a configuration.

    Each is a dict with `name` and any of `behaviors` (names or codes), `scenarios` (names or codes, or "same" for the
    candidate's scenario), `window_seconds` or `window_days`. A key that is absent or None does not restrict.

    Raises:
        ValueError: no strategy, an unknown key, behaviour or scenario, an empty list, a window that is not positive, a name twice.
    """
    if not isinstance(strategies, (list, tuple)) or not strategies:
        raise ValueError(
            f"strategies: expected a list of at least one dict with {', '.join(_KEYS)}; got {strategies!r}"
        )
    parsed = []
    for place, entry in enumerate(strategies):
        where = f"strategies[{place}]"
        if not isinstance(entry, Mapping):
            raise ValueError(f"{where}: expected a dict with {', '.join(_KEYS)}; got {entry!r}")
        refuse_unknown(entry, _KEYS, where)
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}: name={name!r}; give each strategy a name")
        if any(name == other.name for other in parsed):
            raise ValueError(f"{where}: a second strategy with the name {name!r}; names must differ")
        scenarios = entry.get("scenarios")
        if scenarios != SAME:
            scenarios = _codes(scenarios, scenario_names, "scenarios", f"{where} ({name})")
        parsed.append(
            Strategy(
                name=name,
                behaviors=_codes(entry.get("behaviors"), behavior_names, "behaviors", f"{where} ({name})"),
                scenarios=scenarios,
                window_seconds=_window(entry, f"{where} ({name})"),
            )
        )
    return tuple(parsed)


def _codes(values: Any, names: Sequence[str], what: str, where: str) -> tuple[int, ...] | None:
    if values is None or values == "all":
        return None
    if isinstance(values, (str, int)):
        values = [values]
    if not values:
        raise ValueError(f"{where}: {what} is empty, so the strategy selects nothing; leave the key out to select all")
    codes = []
    for value in values:
        if isinstance(value, str):
            if value not in names:
                hint = did_you_mean(value, names, "did you mean")
                raise ValueError(f"{where}: {what} has the unknown name {value!r};{hint} known: {', '.join(names)}")
            value = list(names).index(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(names):
            raise ValueError(f"{where}: {what} has {value!r}; accepted: {', '.join(names)}, or codes from 0")
        codes.append(value)
    return tuple(dict.fromkeys(codes))


def _window(entry: Mapping[str, Any], where: str) -> int | None:
    seconds, days = entry.get("window_seconds"), entry.get("window_days")
    if seconds is not None and days is not None:
        raise ValueError(f"{where}: window_seconds and window_days are both given; give one")
    if seconds is None and days is None:
        return None
    value = seconds if seconds is not None else days
    unit = 1 if seconds is not None else 86_400
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1 <= value * unit < float("inf"):
        raise ValueError(
            f"{where}: the window is {value!r}; use a number above 0, of a second at least, or leave it out for the whole lifetime"
        )
    return int(value * unit)
