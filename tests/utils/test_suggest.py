import pytest

from lmctr.utils.resources import find_resource, list_resources, resource_dir
from lmctr.utils.suggest import first_listed, first_of, first_quoted, nearest, no_column, unknown_key_message


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("lerning_rate", "learning_rate"),
        ("Learning-Rate", "learning_rate"),
        ("seeds", "seed"),
        ("something_else_entirely", None),
    ],
)
def test_nearest(given, expected):
    assert nearest(given, ["learning_rate", "seed", "weight_decay"]) == expected


def test_unknown_key_message():
    message = unknown_key_message("lerning_rate", ["seed", "learning_rate"], "training")
    assert message == (
        "unknown key 'lerning_rate' in training; did you mean 'learning_rate'? known keys: learning_rate, seed"
    )
    many = [f"rate_{number}" for number in range(30)]
    assert unknown_key_message("rate-7", many, "training", every="lmctr keys") == (
        "unknown key 'rate-7' in training; did you mean 'rate_7'? the nearest of 30 known keys: rate_7, rate_27, rate_17, rate_9, rate_8; "
        "lmctr keys prints all"
    )
    assert "rate_29" in unknown_key_message("rate-7", many, "training")
    assert unknown_key_message("xyz", [], "it") == "unknown key 'xyz' in it; known keys: (none)"


def test_of_many_names_the_first_are_told():
    assert first_of(["a", "b", "c", "d", "e"]) == "a, b, c, d, e"
    assert first_of([str(number) for number in range(1240)]) == "0, 1, 2, 3, 4 and 1,235 more"
    assert first_quoted(iter("abcdef")) == "'a', 'b', 'c', 'd', 'e' and 1 more"
    assert first_listed(iter("abcdef")) == str(list("abcdef"))
    assert first_listed(range(321)) == f"{str(list(range(20)))[:-1]} and 301 more]"
    assert no_column("tme", ["user", "time"]) == "no column 'tme'; did you mean 'time'? its columns: user, time"


@pytest.mark.parametrize(
    "name",
    [
        "ctr_sink/quickstart",
        "ctr_sink/quickstart.yaml",
        "recipes/ctr_sink/quickstart.yaml",
        "./recipes/ctr_sink/quickstart",
    ],
)
def test_find_resource_accepts_the_usual_spellings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_resource("recipes", name) == resource_dir("recipes") / "ctr_sink" / "quickstart.yaml"


def test_unknown_resource_offers_the_nearest():
    with pytest.raises(FileNotFoundError, match="did you mean 'ctr_sink/quickstart'"):
        find_resource("recipes", "ctr_sink/quikstart.yaml")
    assert "ctr_sink/quickstart" in list_resources("recipes")
    with pytest.raises(FileNotFoundError) as error:
        find_resource("recipes", "ctr_sink/quikstart.yaml")
    assert len(str(error.value)) < 300  # the nearest names, not all of them


@pytest.mark.parametrize("name", ["../pyproject.toml", "/etc/passwd"])
def test_resources_stay_inside_their_folder(name):
    with pytest.raises(ValueError, match="stays inside its folder"):
        find_resource("recipes", name)


def test_unknown_kind():
    with pytest.raises(ValueError, match="kind must be one of recipes, prompts, model_cards, got 'recipe'"):
        find_resource("recipe", "x")


def test_wheel_layout(tmp_path, monkeypatch):
    """In a wheel the files lie under lmctr/_resources."""
    from lmctr.utils import resources

    package = tmp_path / "site-packages" / "lmctr"
    (package / "utils").mkdir(parents=True)
    (package / "_resources" / "prompts" / "movielens").mkdir(parents=True)
    (package / "_resources" / "prompts" / "movielens" / "en.yaml").write_text("x: 1")
    monkeypatch.setattr(resources, "__file__", str(package / "utils" / "resources.py"))
    assert find_resource("prompts", "movielens/en").read_text() == "x: 1"
    with pytest.raises(FileNotFoundError, match="has no recipes folder"):
        find_resource("recipes", "ctr_sink/quickstart")
