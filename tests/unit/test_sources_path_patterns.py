import pytest

from tidemill.errors import BadSource
from tidemill.sources.folder import folder
from tidemill.sources.path_patterns import PathPattern, literal, split
from tidemill.spark.ingest.formats import Format, FormatOptions, format_of


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.json", ["a.json", ".json", "a b'\"=ü.json"], ["a.csv", "x/a.json", "a.json.gz"]),
        ("*/*.json", ["x/a.json"], ["a.json", "x/y/a.json"]),
        ("**/*.json", ["a.json", "x/a.json", "x/y/a.json"], ["a.csv"]),
        ("**", ["a", "x/y"], []),
        ("day=*/**/p[0-9].csv", ["day=1/p3.csv", "day=1/x/y/p0.csv"], ["day=1/px.csv", "p1.csv"]),
        ("{a,b}?.json", ["a1.json", "b2.json"], ["c1.json", "a.json"]),
        ("[!a]*.json", ["b.json"], ["a.json"]),
        ("[*].json", ["*.json"], ["a.json"]),
        ("a.b", ["a.b"], ["axb"]),
        ("[a&&b|~-]x", ["&x", "-x", "|x"], ["cx"]),
    ],
)
def test_patterns_match_paths(pattern: str, yes: list[str], no: list[str]) -> None:
    matcher = PathPattern(pattern).matcher()
    assert [path for path in yes if not matcher.matches(path)] == []
    assert [path for path in no if matcher.matches(path)] == []


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.json", [], ["x"]),
        ("*/*.json", ["x"], ["x/y"]),
        ("**/*.json", ["x", "x/y/z"], []),
        ("a/**/b/*.json", ["a", "a/x", "a/x/b"], ["x", "x/a"]),
        ("day=*/*.csv", ["day=1"], ["other", "day=1/x"]),
    ],
)
def test_folders_that_cannot_hold_a_match_are_not_entered(
    pattern: str, yes: list[str], no: list[str]
) -> None:
    matcher = PathPattern(pattern).matcher()
    assert [path for path in yes if not matcher.enters(path)] == []
    assert [path for path in no if matcher.enters(path)] == []


@pytest.mark.parametrize("pattern", ["", "/a", "a//b", "../a", "a/./b", "a**b", "[a", "{a", "[z-a]"])
def test_an_invalid_pattern_is_refused_with_a_hint(pattern: str) -> None:
    with pytest.raises(BadSource) as refused:
        PathPattern(pattern)
    assert refused.value.hint


def test_a_pattern_is_split_at_its_first_star() -> None:
    assert split("landing/orders/*.json") == ("landing/orders/", "*.json")
    assert split("*.json") == ("", "*.json")
    assert split("/a/{x,y}/b") == ("/a/", "{x,y}/b")
    assert split("landing") == ("landing", "")
    assert PathPattern(literal("a*[b]{c}?.json")).matcher().matches("a*[b]{c}?.json")


@pytest.mark.parametrize(
    ("path", "root", "pattern", "form"),
    [
        ("landing/orders/*.json", "landing/orders/", "*.json", Format.JSON),
        ("in/*.csv.gz", "in/", "*.csv.gz", Format.CSV),
        ("in/orders.parquet", "in/", "orders.parquet", Format.PARQUET),
        ("in/**/*.{jsonl,ndjson}", "in/", "**/*.{jsonl,ndjson}", Format.JSON),
        ("*.log", ".", "*.log", Format.TEXT),
        ("/data.csv", "/", "data.csv", Format.CSV),
    ],
)
def test_a_folder_is_declared_by_one_path(path: str, root: str, pattern: str, form: Format) -> None:
    spec = folder(path)
    assert (spec.root, spec.pattern.text, spec.reading.format) == (root, pattern, form)


def test_a_folder_without_a_pattern_takes_every_file_in_it() -> None:
    spec = folder("in/orders", format="json")
    assert (spec.root, spec.pattern.text) == ("in/orders", "*")
    assert folder("in/*.tsv").reading.separator == "\t"


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("", {}),
        ("in/*", {}),
        ("in/*.json", {"format": "xml"}),
        ("in/*.csv", {"sep": ";"}),
        ("in/*.csv", {"separator": ""}),
        ("in/*.csv", {"separator": '"'}),
        ("in/*.csv", {"header": "yes please"}),
        ("in/*.parquet", {"multiline": True}),
        ("in/*.json", {"settle_s": -1}),
        ("in/*.json", {"on_change": "maybe"}),
        ("in/*.json", {"max_files": 501}),
        ("in/*.json", {"max_bytes": 0}),
    ],
)
def test_an_invalid_folder_is_refused_with_a_hint(path: str, options: dict[str, object]) -> None:
    with pytest.raises(BadSource) as refused:
        folder(path, **options)  # type: ignore[arg-type]
    assert refused.value.hint


def test_the_ending_decides_the_format() -> None:
    assert [format_of(name) for name in ("a.JSON", "a.csv.gz", "a.b.txt", "a", "a.zip", "a.json.tmp")] == [
        Format.JSON,
        Format.CSV,
        Format.TEXT,
        None,
        None,
        None,
    ]
    assert not FormatOptions(format=Format.CSV, multiline=True).by_lines
