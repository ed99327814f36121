"""Write the eight cuts of MovieLens latest-small on the card quality_elsewhere.md, one folder each under cuts/.

python model_cards/quality/cuts.py FOLDER/ml-latest-small
"""

import shutil
import sys
from pathlib import Path

import pandas as pd

source = Path(sys.argv[1])
events = {name: pd.read_csv(source / name) for name in ("ratings.csv", "tags.csv")}
cuts = {
    f"before-{year}": f"timestamp < {pd.Timestamp(year, 1, 1).timestamp():.0f}"
    for year in (2010, 2012, *range(2014, 2018))
}
for cut, kept in (cuts | {"even": "userId % 2 == 0", "odd": "userId % 2 == 1"}).items():
    folder = Path("cuts", cut)
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in events.items():
        frame.query(kept).to_csv(folder / name, index=False)
    shutil.copy(source / "movies.csv", folder)
