import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmctr.utils.ragged import Ragged, offsets_from_lengths, ragged_arange, ragged_searchsorted

ROWS = st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=12)


@given(ROWS)
def test_rows_are_python_lists(rows):
    ragged = Ragged.from_rows(rows)
    assert len(ragged) == len(rows)
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    assert [ragged[i].tolist() for i in range(len(rows))] == rows
    if rows:
        assert ragged[-1].tolist() == rows[-1]


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 5)), max_size=15))
def test_ragged_arange(ranges):
    starts, lengths = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    assert ragged_arange(starts, lengths).tolist() == [s + i for s, n in ranges for i in range(n)]
    assert offsets_from_lengths(lengths).tolist() == [sum(n for _, n in ranges[:i]) for i in range(len(ranges) + 1)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_ragged_searchsorted(side):
    draw = np.random.default_rng(0)
    rows = [np.sort(draw.integers(0, 9, length)) for length in (0, 5, 1, 40, 0, 7)]
    offsets = offsets_from_lengths(np.array([len(row) for row in rows]))
    asked = draw.integers(0, len(rows), 200)
    wanted = draw.integers(-1, 10, 200)
    found = ragged_searchsorted(np.concatenate(rows), wanted, offsets[asked], offsets[asked + 1], side)
    assert found.tolist() == [
        offsets[row] + np.searchsorted(rows[row], value, side) for row, value in zip(asked, wanted)
    ]


def test_errors():
    ragged = Ragged.from_rows([[1], [2, 3]])
    with pytest.raises(IndexError, match="row 2 of 2 rows"):
        ragged[2]
    with pytest.raises(ValueError, match="from 0 to 3"):
        Ragged(np.arange(3), np.array([0, 2]))
    with pytest.raises(ValueError, match="fall after row 1"):
        Ragged(np.arange(3), np.array([0, 2, 1, 3]))
