"""Draws the pictures of docs/concepts.md as SVG: `python docs/site/pictures.py`. The files are kept beside the page."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "concepts"
BLUE, GREEN, GREY, AMBER = "#5c6bc0", "#66bb6a", "#eceff1", "#ffca28"
# Widths 2 to 32 of docs/examples/scaling_ladder.py, as that script printed them: FLOPs per sample and test AUC.
LADDER = ((84, 0.7779), (168, 0.7844), (336, 0.7827), (672, 0.7930), (1344, 0.7935))


def box(x: float, y: float, width: float, height: float, text: str = "", fill: str = GREY) -> str:
    """A rectangle with words in its middle."""
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{fill}" stroke="#455a64"/>'
    return shape + label(x + width / 2, y + height / 2 + 5, text)


def label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    """Words at a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="14">{escape(text)}</text>'


def line(x: float, y: float, to_x: float, to_y: float) -> str:
    """An arrow."""
    return f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="#455a64" marker-end="url(#tip)"/>'


def svg(width: int, height: int, title: str, *parts: str) -> str:
    """A whole picture."""
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-family="sans-serif">'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, f"<title>{escape(title)}</title><defs>{tip}</defs>{ground}", *parts, "</svg>"]) + "\n"


def views() -> str:
    """One log, three ways to read it."""
    parts = [box(10, 70, 170, 60, "log: user, item, time", GREEN)]
    for place, (name, shown) in enumerate(
        (
            ("text", "liked Heat [SINK] skipped Babe [SINK] → Casino"),
            ("sequence", "items 318 34 → 16, behaviours 1 2"),
            ("row", "user 7 | item 16 | hour 21 | rate of item 0.4"),
        )
    ):
        y = 15 + 65 * place
        parts += [line(180, 100, 238, y + 20), box(240, y, 80, 40, name, AMBER), box(330, y, 360, 40, shown)]
    return svg(700, 200, "One log, read as text, as a sequence and as a row", *parts)


def sinks() -> str:
    """Tokens of two behaviours and a target, with a sink after each behaviour."""
    tokens = ("Heat", "(1995)", "[SINK]", "Babe", "[SINK]", "Casino", "?")
    parts = [
        box(10 + 95 * place, 90, 88, 36, token, BLUE if token == "[SINK]" else GREY)
        for place, token in enumerate(tokens)
    ]
    for sink, words in ((2, (0, 1)), (4, (3,))):
        parts += [
            f'<path d="M{54 + 95 * word} 90 Q{54 + 47.5 * (word + sink):g} 50 {54 + 95 * sink} 88" fill="none" stroke="#455a64" marker-end="url(#tip)"/>'
            for word in words
        ]
        parts.append(label(54 + 95 * sink, 40, "recent? liked?"))
    parts += [
        f'<path d="M624 126 Q{339 + 47 * sink} 190 {54 + 95 * sink} 128" fill="none" stroke="#455a64" marker-end="url(#tip)"/>'
        for sink in (2, 4)
    ]
    parts.append(label(54 + 95 * 3, 180, "attention of the prediction gathers at the sinks"))
    return svg(680, 195, "A sink after each behaviour", *parts)


def sumi() -> str:
    """The attention mask of a history of four events and three candidates."""
    events, names = 4, ["h1", "h2", "h3", "h4", "c1", "c2", "c3"]
    parts = []
    for query, name in enumerate(names):
        parts += [label(30, 52 + 28 * query, name), label(64 + 28 * query, 24, name)]
        for key in range(len(names)):
            reads = key <= query if key < events else key == query
            fill = (GREEN if query < events else BLUE) if reads else "white"
            parts.append(box(50 + 28 * key, 33 + 28 * query, 28, 28, fill=fill))
    parts += [
        label(265, 90, "green: the history, encoded once", "start"),
        label(265, 175, "blue: a candidate reads it", "start"),
    ]
    return svg(500, 245, "What each position of a SUMI row may read", *parts)


def ladder() -> str:
    """1 - AUC over FLOPs, both as logarithms, with the power law of all but the largest size."""
    points = [(math.log(flops), math.log(1 - auc)) for flops, auc in LADDER]
    fitted = points[:-1]
    mean_x, mean_y = (sum(values) / len(fitted) for values in zip(*fitted))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in fitted) / sum((x - mean_x) ** 2 for x, _ in fitted)
    left, right = points[0][0], points[-1][0]

    def place(x: float, y: float) -> tuple[float, float]:
        return round(70 + 380 * (x - left) / (right - left), 1), round(30 + 1700 * (math.log(0.225) - y), 1)

    ends = [place(x, mean_y + slope * (x - mean_x)) for x in (left, right)]
    parts = [
        f'<line x1="{ends[0][0]}" y1="{ends[0][1]}" x2="{ends[1][0]}" y2="{ends[1][1]}" stroke="{BLUE}" stroke-width="2"/>'
    ]
    for (x, y), (flops, auc) in zip(points, LADDER):
        at = place(x, y)
        fill = AMBER if flops == LADDER[-1][0] else BLUE
        parts.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="6" fill="{fill}" stroke="#455a64"/>')
        parts += [label(at[0], at[1] - 12, f"{auc:.4f}"), label(at[0], 235, f"{flops:,}")]
    parts += [label(260, 258, "FLOPs per sample (log); points: test AUC, one seed; yellow: not fitted")]
    return svg(540, 270, "AUC by FLOPs of five widths of a DNN", *parts)


PICTURES = {"views": views, "sinks": sinks, "sumi": sumi, "ladder": ladder}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
