import ast
import inspect
import pickle
import re
from pathlib import Path

import pytest

import tidemill
from tidemill import errors
from tidemill.errors import LeaseLost, Stop, TidemillError, TransactionTooLong, UsageError

SOURCE = Path(inspect.getfile(tidemill)).parent

Tree = dict[str, "Tree"]


def drawn() -> Tree:
    """Return the trees in the docstring: the column of a name is its depth."""
    roots: Tree = {}
    path: list[tuple[int, Tree]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)([A-Z]\w+)(?:\(BaseException\))?(?: {2,}\S.*)?$", line)
        if not match:
            continue
        while path and path[-1][0] >= match.end(1):
            path.pop()
        siblings = path[-1][1] if path else roots
        assert match[2] not in siblings, f"{match[2]} is drawn twice"
        path.append((match.end(1), siblings.setdefault(match[2], {})))
    return roots


def real(kind: type[BaseException]) -> Tree:
    return {sub.__name__: real(sub) for sub in kind.__subclasses__() if sub.__module__ == errors.__name__}


def all_of(kind: type[BaseException]) -> list[type[BaseException]]:
    below = [sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__]
    return [kind, *[each for sub in below for each in all_of(sub)]]


EVERY = [*all_of(TidemillError), *all_of(Stop)]
LEAVES = [kind for kind in all_of(TidemillError) if not real(kind)]


def test_the_drawn_tree_equals_the_classes() -> None:
    assert drawn() == {"TidemillError": real(TidemillError), "Stop": real(Stop)}


def test_the_drawn_tree_has_the_order_of_the_file() -> None:
    def names(tree: Tree) -> list[str]:
        return [name for top, below in tree.items() for name in (top, *names(below))]

    defined = [name for name, kind in vars(errors).items() if isinstance(kind, type) and kind in EVERY]
    assert names(drawn()) == defined


@pytest.mark.slow
def test_no_error_is_defined_anywhere_else() -> None:
    names = {kind.__name__ for kind in EVERY}
    strays = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "errors.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if (base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")) in names
    ]
    assert strays == []


def test_every_class_has_a_unique_code() -> None:
    names = [vars(kind).get("code") for kind in EVERY]
    assert None not in names
    assert sorted(names) == sorted(set(names))
    assert [code for code in names if not re.fullmatch(r"[a-z]+(-[a-z]+)*", code)] == []


@pytest.mark.parametrize("kind", LEAVES)
def test_every_leaf_has_a_hint_or_explains_why_not(kind: type[TidemillError]) -> None:
    says_why = (vars(kind).get("__doc__") or "").startswith(("No hint", "No default hint"))
    assert bool(kind.hint) != says_why


@pytest.mark.parametrize("kind", [kind for kind in LEAVES if kind.hint])
def test_a_hint_is_one_line_that_continues_after_hint(kind: type[TidemillError]) -> None:
    assert "\n" not in kind.hint
    assert kind.hint[0].islower()
    assert not kind.hint.endswith(".")


def test_the_hints_about_limits_name_the_limits() -> None:
    from tidemill.store import LIMITS

    assert f"{LIMITS.key_bytes // 1024} KiB" in errors.KeyTooLarge.hint
    assert f"{LIMITS.value_bytes // 1024} KiB" in errors.ValueTooLarge.hint
    assert f"{LIMITS.transaction_writes:,} writes" in errors.TransactionTooLarge.hint
    assert f"{LIMITS.transaction_bytes // 1_000_000} MB" in errors.TransactionTooLarge.hint
    assert f"{LIMITS.transaction_s:g} s" in errors.TransactionTooLong.hint


def test_an_error_reads_as_its_message_then_its_hint() -> None:
    assert str(TransactionTooLong("it lasted 3 s")) == f"it lasted 3 s\nhint: {TransactionTooLong.hint}"
    assert str(TransactionTooLong("it lasted 3 s", hint="be quick")) == "it lasted 3 s\nhint: be quick"
    assert str(TransactionTooLong("it lasted 3 s", hint="")) == "it lasted 3 s"
    assert str(UsageError("not like this")) == "not like this"
    assert TransactionTooLong.hint.startswith("a transaction can take"), "a hint belongs to one error"


@pytest.mark.parametrize("kind", all_of(TidemillError))
def test_an_error_can_be_pickled_completely(kind: type[TidemillError]) -> None:
    for error in (kind("what happened"), kind("what happened", hint="what to do")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert (copy.message, copy.hint, copy.code, str(copy)) == (
            error.message,
            error.hint,
            kind.code,
            str(error),
        )


def test_a_lost_lease_cannot_be_swallowed_as_an_error() -> None:
    assert not issubclass(Stop, Exception)

    def user_code() -> None:
        try:
            raise LeaseLost("taken over")
        except Exception:  # noqa: BLE001 - what user code does
            pytest.fail("swallowed")

    with pytest.raises(LeaseLost):
        user_code()
