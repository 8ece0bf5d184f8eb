"""Which rules were tested: `@pytest.mark.rule("STO-5")` -> `build/rules.json`.

The file says what the last whole run found: `{"STO-5": {"tests/…::test_x": "passed"}}`, the outcome being
passed, failed or skipped. A run of some of the tests knows nothing about the others, so it writes
`build/rules-partial.json` and leaves the whole run's file alone. A test that names an unknown rule, or more
than four, fails and says why.

Under xdist the marks travel with the reports, and the process that hands out the work writes the file.
"""

import functools
import json
import os
from collections.abc import Generator, Iterable

import pytest

from tests.rules import known_rules

MOST_RULES = 4
WHOLE, PARTIAL = "rules.json", "rules-partial.json"
PROPERTY = "rules"


def rules_of(item: pytest.Item) -> list[str]:
    """The rules a test names, each once, in order."""
    named = [rule for mark in item.iter_markers("rule") for rule in mark.args]
    return sorted(dict.fromkeys(named), key=rule_order)


def rule_order(rule: object) -> tuple[str, int]:
    """STO-9 before STO-10."""
    prefix, _, number = str(rule).rpartition("-")
    return prefix, int(number) if number.isdecimal() else 0


def complaint(rules: Iterable[object], known: Iterable[str]) -> str | None:
    """What is wrong with the rules of one test, or None."""
    rules, known = list(rules), set(known)
    unknown = [str(rule) for rule in rules if rule not in known]
    if unknown:
        return f"no such rule in docs/rules: {', '.join(unknown)}"
    if len(rules) > MOST_RULES:
        return f"{len(rules)} rules on one test, at most {MOST_RULES}: {', '.join(map(str, rules))}"
    return None


def is_whole(config: pytest.Config) -> bool:
    """True when nothing on the command line left tests out, but the long ones marked `crash`."""
    option = config.option
    everything = {(config.rootpath / path).resolve() for path in config.getini("testpaths")}
    chosen = {(config.invocation_params.dir / argument).resolve() for argument in config.args}
    narrowed = [
        option.keyword,
        option.markexpr not in ("", "not crash"),
        option.deselect,
        option.ignore,
        option.ignore_glob,
        option.maxfail,
        getattr(option, "lf", False),
        getattr(option, "stepwise", False),
        option.collectonly,
    ]
    return chosen in (everything, {config.rootpath}) and not any(narrowed)


class RuleRecorder:
    """Collects the outcome of every test that names a rule, and writes them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._folder = config.rootpath / "build"
        self._whole = is_whole(config)
        self._rules: dict[str, list[str]] = {}
        self._phases: dict[str, dict[str, str]] = {}
        self._summary = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = plain_id(report.nodeid)
        for name, rules in report.user_properties:
            if name == PROPERTY and isinstance(rules, list):
                self._rules[test] = rules
        self._phases.setdefault(test, {})[report.when] = report.outcome

    def outcomes(self) -> dict[str, dict[str, str]]:
        """What the file says: rule -> test -> outcome."""
        by_rule: dict[str, dict[str, str]] = {}
        for test in sorted(self._rules):
            for rule in self._rules[test]:
                by_rule.setdefault(rule, {})[test] = outcome(self._phases[test])
        return {rule: by_rule[rule] for rule in sorted(by_rule, key=rule_order)}

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        outcomes = self.outcomes()
        if not outcomes:
            return
        finished = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        written = self._folder / (WHOLE if self._whole and finished else PARTIAL)
        self._folder.mkdir(exist_ok=True)
        draft = written.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")
        draft.replace(written)
        self._summary = f"{summary(outcomes)}; see build/{written.name}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._summary:
            terminalreporter.write_line(self._summary)


def outcome(phases: dict[str, str]) -> str:
    """What set-up, call and tear-down of one test add up to; a test whose process died has failed."""
    for strongest in ("failed", "skipped"):
        if strongest in phases.values():
            return strongest
    return "passed" if phases.get("call") == "passed" else "failed"


def summary(outcomes: dict[str, dict[str, str]]) -> str:
    """Count the rules by outcome; a rule that any test contradicts has failed."""
    results = [set(tests.values()) for tests in outcomes.values()]
    failed = sum("failed" in each for each in results)
    skipped = sum(each == {"skipped"} for each in results)
    return f"rules: {len(results) - failed - skipped} passed, {failed} failed, {skipped} only skipped"


def plain_id(nodeid: str) -> str:
    """The id of a test without the group that `--dist loadgroup` appends."""
    return nodeid[: nodeid.rfind("@")] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RuleRecorder(config), "tidemill-rule-recorder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        rules = rules_of(item)
        if rules:
            item.user_properties.append((PROPERTY, rules))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    # A wrapper comes before the marks that skip: a wrong rule is wrong on a skipped test too.
    wrong = complaint(rules_of(item), known_rules_once())
    if wrong is not None:
        pytest.fail(wrong, pytrace=False)
    return (yield)


@functools.cache
def known_rules_once() -> dict[str, str]:
    """The rules, read from the pages at the first need."""
    return known_rules()
