"""Bars and maps as HTML without scripts; every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

_COLOUR, _LESS = "#1f4e9c", "#b35900"
_CELL = "padding:2px 8px;border:0;vertical-align:middle"


def note(text: str, colour: str = "inherit") -> str:
    """A paragraph."""
    return f'<p style="color:{colour}">{escape(text)}</p>'


def bars(title: str, rows: Sequence[tuple[str, float, str]], says: str = "") -> str:
    """A table of labels, bars and values: (label, length, value in words); bars below zero have another colour."""
    longest = max((abs(length) for _, length, _ in rows), default=0.0) or 1.0
    lines = []
    for label, length, value in rows:
        colour, width = (_COLOUR if length >= 0 else _LESS), 100 * abs(length) / longest
        bar = f'<div style="background:{colour};height:0.8em;width:{width:.1f}%"></div>'
        lines.append(
            f'<tr><td style="{_CELL};width:45%">{escape(label)}</td><td style="{_CELL};width:40%">{bar}</td>'
            f'<td style="{_CELL};white-space:nowrap">{escape(value)}</td></tr>'
        )
    return f'<h3>{escape(title)}</h3>{note(says) if says else ""}<table style="width:100%">{"".join(lines)}</table>'


def heat_map(title: str, names: Sequence[str], matrix: np.ndarray, says: str = "") -> str:
    """A square of cells, darker for larger values between the least and the largest; the value shows where the mouse rests."""
    low, high = float(matrix.min()), float(matrix.max())
    head = "".join(f'<th style="writing-mode:vertical-rl;font-weight:normal">{escape(name)}</th>' for name in names)
    lines = [f"<tr><th></th>{head}</tr>"]
    for name, row in zip(names, matrix):
        cells = []
        for other, value in zip(names, row):
            depth = (value - low) / (high - low) if high > low else 0.5
            words = escape(f"{name} reads {other}: {value:.3f}", quote=True)
            style = f"background:rgba(31,78,156,{depth:.2f});min-width:1.1em;height:1.1em;border:1px solid #ddd"
            cells.append(f'<td title="{words}" style="{style}"></td>')
        lines.append(f'<tr><th style="font-weight:normal;text-align:right">{escape(name)}</th>{"".join(cells)}</tr>')
    table = f'<table style="font-size:80%;border-collapse:collapse">{"".join(lines)}</table>'
    return f'<h3>{escape(title)}</h3>{note(says) if says else ""}<div style="overflow-x:auto">{table}</div>'
