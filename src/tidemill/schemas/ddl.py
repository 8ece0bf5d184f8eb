"""Parse the text of a schema without Spark: `id BIGINT, name STRING NOT NULL, tags ARRAY<STRING>`.

This parser accepts the same columns as Spark's parser; a test compares the two. Errors name the position of
the problem in the text.
"""

import re
from typing import Final, NamedTuple, NoReturn

from tidemill.errors import BadSchema
from tidemill.schemas.columns import Array, Column, Map, Schema, Simple, Struct, Type, check_columns
from tidemill.schemas.type_table import BY_NAME

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<word>[A-Za-z0-9_]+)
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<mark>[<>(),:])""",
    re.VERBOSE | re.DOTALL,
)
MOST_LEVELS: Final = 100
"""How deep arrays, maps and structs may be nested. Records have the same limit."""

_MOST_DIGITS: Final = 10
_YEARS: Final = ("year", "month")
_DAYS: Final = ("day", "hour", "minute", "second")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}


def parse(text: str) -> Schema:
    """Parse the text of a schema. Raise `BadSchema` with the position if it is invalid.

    >>> str(parse("id LONG, `a b` ARRAY<int> NOT NULL"))
    'id bigint, `a b` array<int> NOT NULL'
    """
    parser = _Parser(text)
    if not text.strip():
        raise BadSchema(
            "the schema has no columns", hint="declare at least one column, for example 'id BIGINT'"
        )
    if parser.is_word("struct") and parser.peek(1).text == "<":
        struct = parser.type()
        parser.expect_end()
        assert isinstance(struct, Struct)
        return Schema(struct.fields)
    columns = parser.columns()
    parser.expect_end()
    return Schema(columns)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._next = 0
        self._level = 0

    def _split(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                self._fail(at, "a name with this character needs backquotes")
            if token.lastgroup != "space":
                tokens.append(_Token(str(token.lastgroup), token[0], at))
            at = token.end()
        return [*tokens, _Token("end", "", len(text))]

    # --- tokens

    def peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def take(self) -> _Token:
        token = self.peek()
        self._next += 1
        return token

    def is_word(self, *words: str) -> bool:
        token = self.peek()
        return token.kind == "word" and token.text.lower() in words

    def takes(self, mark: str) -> bool:
        if self.peek().text != mark or self.peek().kind not in ("mark", "word"):
            return False
        self._next += 1
        return True

    def takes_word(self, word: str) -> bool:
        if not self.is_word(word):
            return False
        self._next += 1
        return True

    def expect(self, mark: str) -> None:
        if not self.takes(mark):
            self.fail(f"expected {mark!r}")

    def expect_end(self) -> None:
        if self.peek().kind != "end":
            self.fail("expected ',' or the end")

    def number(self) -> int:
        token = self.peek()
        if token.kind != "word" or not token.text.isdecimal():
            self.fail("expected a number")
        if len(token.text) > _MOST_DIGITS:
            self.fail(f"a number has more than {_MOST_DIGITS} digits")
        return int(self.take().text)

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        self._fail(self.peek().at if at is None else at, why)

    def _fail(self, at: int, why: str) -> NoReturn:
        line_start = self._text.rfind("\n", 0, at) + 1
        line = self._text[line_start:].partition("\n")[0]
        number = self._text.count("\n", 0, at) + 1
        column = at - line_start
        start = max(0, column - 60)
        excerpt = line[start : column + 40]
        place = f"line {number}, character {column + 1}" if number > 1 else f"character {column + 1}"
        raise BadSchema(f"{why} ({place} of the schema)\n  {excerpt}\n  {' ' * (column - start)}^")

    # --- grammar

    def columns(self) -> tuple[Column, ...]:
        columns = [self.column()]
        while self.takes(","):
            columns.append(self.column())
        check_columns(tuple(columns))
        return tuple(columns)

    def column(self) -> Column:
        name = self.name()
        self.takes(":")
        kind = self.type()
        nullable = True
        if self.takes_word("not"):
            if not self.takes_word("null"):
                self.fail("expected NOT NULL")
            nullable = False
        comment = ""
        if self.takes_word("comment"):
            if self.peek().kind != "text":
                self.fail("expected a comment in quotes")
            comment = _unescaped(self.take().text)
        return Column(name, kind, nullable, comment)

    def name(self) -> str:
        token = self.peek()
        if token.kind == "quoted":
            self.take()
            name = token.text[1:-1].replace("``", "`")
            if not name:
                self.fail("a column has no name", token.at)
            return name
        if token.kind != "word":
            self.fail("expected a column name")
        return self.take().text

    def type(self) -> Type:
        token = self.peek()
        if token.kind != "word":
            self.fail("expected a type")
        self._level += 1
        if self._level > MOST_LEVELS:
            self.fail(f"types are nested more than {MOST_LEVELS} levels deep")
        parsed = self.type_named(token)
        self._level -= 1
        return parsed

    def type_named(self, token: _Token) -> Type:
        word = self.take().text.lower()
        match word:
            case "array":
                self.expect("<")
                element = self.type()
                self.expect(">")
                return Array(element)
            case "map":
                self.expect("<")
                key = self.type()
                self.expect(",")
                value = self.type()
                self.expect(">")
                return Map(key, value)
            case "struct":
                self.expect("<")
                fields = () if self.peek().text == ">" else self.columns()
                self.expect(">")
                return Struct(fields)
            case _:
                return Simple(self.simple(word, token))

    def simple(self, word: str, token: _Token) -> str:
        match word:
            case "decimal" | "dec" | "numeric":
                return self.decimal(token)
            case "string":
                return f"string collate {self.name()}" if self.takes_word("collate") else "string"
            case "char" | "character" | "varchar":
                self.expect("(")
                length = self.number()
                self.expect(")")
                return f"{'varchar' if word == 'varchar' else 'char'}({length})"
            case "time":
                return f"time({self.in_brackets(6, most=6)})"
            case "geometry" | "geography":
                self.expect("(")
                system = "any" if self.takes_word("any") else str(self.number())
                self.expect(")")
                return f"{word}({system})"
            case "interval":
                return self.interval()
            case _:
                if word not in BY_NAME:
                    self.fail(f"{token.text!r} is not a type", token.at)
                return BY_NAME[word].name

    def decimal(self, token: _Token) -> str:
        precision, scale = 10, 0
        if self.takes("("):
            precision = self.number()
            if self.takes(","):
                scale = self.number()
            self.expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            self.fail(f"decimal({precision},{scale}) needs precision <= 38 and scale <= precision", token.at)
        return f"decimal({precision},{scale})"

    def in_brackets(self, default: int, *, most: int) -> int:
        if not self.takes("("):
            return default
        at = self.peek().at
        number = self.number()
        if number > most:
            self.fail(f"the maximum is {most}", at)
        self.expect(")")
        return number

    def interval(self) -> str:
        if not self.is_word(*_YEARS, *_DAYS):
            return "interval"
        start = self.take().text.lower()
        if not self.takes_word("to"):
            return f"interval {start}"
        fields = _YEARS if start in _YEARS else _DAYS
        if not self.is_word(*fields[fields.index(start) + 1 :]):
            self.fail(f"an interval cannot go from {start} to {self.peek().text!r}")
        return f"interval {start} to {self.take().text.lower()}"


def _unescaped(text: str) -> str:
    quote = text[0]
    inside = re.compile(rf"\\(.)|{quote}({quote})", re.DOTALL)
    return inside.sub(lambda match: match[2] or _ESCAPES.get(match[1], match[1]), text[1:-1])
