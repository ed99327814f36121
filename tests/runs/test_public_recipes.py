"""The recipes on public data that nobody ran on the real files yet, each from files of random rows in the data's own form to a run."""

import json

import numpy as np
import pytest

import lmctr

USER = "userid cms_segid cms_group_id final_gender_code age_level pvalue_level shopping_level occupation new_user_class_level"
COLUMNS = [*USER.split(), "adgroup_id", "cate_id", "campaign_id", "customer", "brand", "pid"]
FLAGS = "skip_1,skip_2,skip_3,not_skipped"


def kuaivideo(folder, draw):
    for part, count in (("train", 240), ("test", 60)):
        rows = ["timestamp,user_id,item_id,is_click,is_like,is_follow,pos_items,neg_items"]
        for number in range(count):
            liked, other = ("^".join(map(str, draw.integers(20, size=draw.integers(4)))) for _ in range(2))
            rows.append(f"{number},{draw.integers(6)},{draw.integers(20)},{draw.integers(2)},0,0,{liked},{other}")
        (folder / f"{part}.csv").write_text("\n".join(rows))


def taobao_ad(folder, draw):
    for part, count in (("train", 240), ("test", 60)):
        rows = [",".join(["clk", "btag_his", "cate_his", "brand_his", *COLUMNS, "price"])]
        for _ in range(count):
            done = draw.integers(4)
            lists = ["^".join(map(str, draw.integers(9, size=done))) for _ in range(3)]
            rows.append(",".join([str(draw.integers(2)), *lists, *map(str, draw.integers(9, size=15)), "12.5"]))
        (folder / f"{part}.csv").write_text("\n".join(rows))


def amazon_book(folder, draw):
    rows = [f"A{u},B{draw.integers(12)},{draw.integers(1, 6)}.0,{86_400 * day}" for u in range(8) for day in range(20)]
    (folder / "ratings_Books.csv").write_text("\n".join(rows))


def thirty_music(folder, draw):
    lines, loved = [], []
    tracks = [f'track\t{track}\t-1\t{{"name": "n"}}\t{{"artists": [], "tags": []}}' for track in range(12)]
    for number in range(60):
        start, heard = 1_400_000_000 + 10_000 * number, []
        for place in range(4):
            entry = {"type": "track", "id": int(draw.integers(12)), "playstart": 100 * place, "playtime": 90}
            heard.append({**entry, "playratio": float(draw.random()), "action": ("play", "skip")[draw.integers(2)]})
        for kind, found, objects in (("event.session", lines, heard), ("preference.love", loved, heard[:1])):
            links = {"subjects": [{"type": "user", "id": number % 6}], "objects": objects}
            found.append(f"{kind}\t{number}\t{start}\t{{}} {json.dumps(links)}")
    for name, rows in (("relations/sessions", lines), ("relations/love", loved), ("entities/tracks", tracks)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.idomaar").write_text("\n".join(rows))


def spotify_sessions(folder, draw):
    rows = [f"session_id,session_position,track_id_clean,{FLAGS},hour_of_day,date,context_type"]
    for session in range(24):
        for place in range(1, 13):
            heard = draw.integers(1, 5)  # skipped at once, early or late, or played
            flags = ",".join(str(bool(heard <= level)).lower() for level in (1, 2, 3)) + f",{str(heard == 4).lower()}"
            rows.append(
                f"s{session},{place},t{draw.integers(12)},{flags},{session % 24},2018-07-{1 + session // 2:02d},radio"
            )
    (folder / "log_0.csv").write_text("\n".join(rows))


@pytest.mark.parametrize(
    ("recipe", "write", "family"),
    [
        ("rank_elastor/kuaivideo_x1", kuaivideo, "rank_elastor"),
        ("rank_mixer/kuaivideo_x1", kuaivideo, "rank_mixer"),
        ("rank_elastor/taobao_ad_x1", taobao_ad, "rank_elastor"),
        ("rank_mixer/taobao_ad_x1", taobao_ad, "rank_mixer"),
        ("sequence/amazon_book", amazon_book, "astro"),
        ("sequence/30music", thirty_music, "astro"),
        ("sequence/spotify_sessions", spotify_sessions, "astro"),
    ],
)
def test_a_recipe_on_public_data(recipe, write, family, tmp_path):
    write(tmp_path, np.random.default_rng(0))
    values = {"data.path": str(tmp_path), "training.epochs": 1, "training.use_cpu": True}
    if family != "astro":
        values["data.cache_dir"] = str(tmp_path / "cache")
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run", overrides=values, quiet=True)
    assert run.model.config.model_type == family
    assert 0 <= run.metrics["test"]["auc"] <= 1
    if family != "astro":  # the users' AUC stands beside that of all rows
        assert "grouped_auc" in run.metrics["test"]
