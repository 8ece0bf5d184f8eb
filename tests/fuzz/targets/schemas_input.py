"""Texts of schemas: a mutated schema is parsed, and its text has the same meaning, or it is refused."""

import random

from tests.fuzz.campaign import check_refusal
from tests.fuzz.mutation import listed, mutated_text, text
from tests.fuzz.targets.json_input import TYPES
from tidemill.errors import TidemillError
from tidemill.schemas import arrow, ddl

CASES = 250
_WORDS = listed("""
NOT NULL|COMMENT 'x'|ARRAY<|MAP<|STRUCT<|>|<|,|:|`|``|DECIMAL(10,2)|(|)|--|/*|VARCHAR(10)|CHAR(0)|TIME(9)|id
INTERVAL DAY TO SECOND|INTERVAL YEAR|STRING COLLATE UNICODE|GEOMETRY(4326)|VOID|DECIMAL(0,0)|DECIMAL(39,1)
DECIMAL(5,9)|STRUCT<>|ID|_x|DEFAULT 1|GENERATED|१|99999999999999999999
""")


def generate(rng: random.Random) -> str:
    names = ("id", "name", "`a b`", "`x``y`", "É", "select", "1a")
    schema = ", ".join(
        f"{rng.choice(names)}{number} {rng.choice(TYPES)}" for number in range(rng.randrange(1, 4))
    )
    if rng.random() < 0.05:
        depth = rng.choice((10, 100, 500, 3000))
        schema = rng.choice(
            ("id " + "ARRAY<" * depth + "INT" + ">" * depth, "id " + "STRUCT<a:" * depth, text(rng))
        )
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        schema = mutated_text(rng, schema, _WORDS)
    return schema


def check(schema: str) -> None:
    try:
        columns = ddl.parse(schema)
        assert ddl.parse(str(columns)) == columns, "the text of the columns means something else"
        columns.fingerprint  # noqa: B018
        columns.stored()
        arrow.of_arrow(arrow.to_arrow(columns))
    except TidemillError as error:
        check_refusal(error)
