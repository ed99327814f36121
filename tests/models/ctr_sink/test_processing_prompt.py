"""Prompts and item templates."""

import pyarrow as pa
import pytest

from lmctr.models.ctr_sink.prompt import ItemTemplate, Prompt
from lmctr.utils.resources import list_resources

CATALOGUE = pa.table(
    {
        "item_id": [1, 2, 3, 4],
        "title": ["Heat", None, "", "Alien"],
        "genres": pa.array([["Action", "Crime"], ["Drama"], [], None], pa.list_(pa.string())),
        "year": [1995, None, 2000, 1979],
    }
)


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        ("{title}[ ({genres})]", ["Heat (Action, Crime)", "(Drama)", "", "Alien"]),
        ("{title} - {year}", ["Heat - 1995", "-", "- 2000", "Alien - 1979"]),
        ("[[{title}]] {{x}}", ["[Heat] {x}", "[] {x}", "[] {x}", "[Alien] {x}"]),
        ("{genres:.10}|{title:.3}", ["Action,|Hea", "Drama|", "|", "|Ali"]),
        ("[{title}[", None),
        ("{title}]", None),
        ("{title", None),
        ("{}", None),
        ("no columns", None),
        ("[{title} [{genres}]]", None),
    ],
)
def test_item_templates(template, texts):
    if texts is None:
        with pytest.raises(ValueError, match="item template"):
            ItemTemplate(template)
    else:
        assert ItemTemplate(template).render_table(CATALOGUE) == texts


@pytest.mark.parametrize("template", ["{tilte}", "{tilte:.5}"])
def test_a_missing_column_is_named(template):
    with pytest.raises(ValueError, match=r"unknown key 'tilte'.*did you mean 'title'\? columns of the catalogue"):
        ItemTemplate(template).render_table(CATALOGUE)


@pytest.mark.parametrize(
    ("most", "text"), [(1, "o"), (4, "one"), (6, "one"), (7, "one\ntwo"), (8, "one\ntwo"), (99, "one\ntwo  愛の物語")]
)
def test_long_texts_are_cut_between_words(most, text):
    assert ItemTemplate(f"{{d:.{most}}}").fill({"d": "one\ntwo  愛の物語"}) == text
    assert (
        ItemTemplate("{d:.11}").fill({"d": "OPPO " + "手机壳" * 9}) == "OPPO 手机壳手机壳"
    )  # no blanks behind the brand
    assert ItemTemplate("{d:.2}{d}").fill({"d": "愛の物"}) == "愛の愛の物"


def test_the_same_items_have_the_same_texts_from_a_file_of_float32():
    """Parquet files often hold prices as float32, which Python would write with the digits of float64."""
    prices, template = [17.6, None, 22.78, 1e6], ItemTemplate("{price} €")
    texts = [
        template.render_table(pa.table({"price": pa.array(prices, kind)})) for kind in (pa.float64(), pa.float32())
    ]
    assert texts[0] == texts[1] == ["17.6 €", "€", "22.78 €", "1000000.0 €"]


@pytest.mark.parametrize(
    "values", [[{"name": "Bosch"}], [[{"name": "Bosch"}]], pa.array([[("k", 1)]], pa.map_("string", "int8"))]
)
def test_objects_have_no_text(values):
    """Their entries' names would stand in the text of every item, and no value."""
    with pytest.raises(ValueError, match=r"column 'brand' holds objects .*columns of their own"):
        ItemTemplate("{brand}").render_table(pa.table({"brand": values}))


@pytest.mark.parametrize("name", list_resources("prompts"))
def test_shipped_prompts_are_whole(name):
    prompt = Prompt.load(name)
    assert prompt.name == name
    assert prompt.language == name.split("/")[1]
    assert len(prompt.feedback) == 2
    assert Prompt.from_dict(prompt.to_dict()) == prompt


def test_prompts_from_files_and_values(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text('base: generic/en\nname: mine\nitem: "{name}"\n', encoding="utf-8")
    prompt = Prompt.load(path)
    assert (prompt.name, prompt.item, prompt.separator) == ("mine", "{name}", "; ")
    assert Prompt.load(prompt) is prompt
    assert Prompt.load({"base": "generic/en", "item": "{name}"}).name == "generic/en, changed"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"base": "generic/en", "seperator": "; "}, "did you mean 'separator'"),
        ({"name": "x"}, "lacks language, item, head, separator, target"),
        ({"base": "generic/en", "target": "Like it?"}, r"target must hold \{item\} once"),
        ({"base": "generic/en", "head": None}, "head must be a text, got None"),
        ({"base": "generic/en", "feedback": ["liked"]}, "feedback entry 1 of the prompt must hold name, word, header"),
        ({"base": "generic/en", "feedback": [{"name": "a", "word": "b"}]}, "header must be a text, got None"),
        ({"base": "generic/en", "feedback": [{"name": "a", "word": "b", "hedder": "c"}]}, "did you mean 'header'"),
        ({"base": "generic/en", "feedback": [{"name": "a", "word": "", "header": ""}] * 2}, "must differ"),
        (
            {"base": "generic/en", "feedback": [{"name": "a", "word": "{value} of {most} ", "header": ""}]},
            r"word of 'a' may hold \{value\} only",
        ),
        ({"base": "generic/en", "item": "x"}, "names no column"),
        (
            {"base": "generic/en", "item": {"title": None}},
            r"item must be a text, got \{'title': None\}; .* stands in quotes",
        ),
        (3, "prompt must be a name"),
    ],
)
def test_bad_prompts(values, message):
    with pytest.raises(ValueError, match=message):
        Prompt.load(values)


def test_a_file_that_is_no_yaml(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("a: [1", encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken\.yaml, line 1: not valid YAML"):
        Prompt.load(path)
