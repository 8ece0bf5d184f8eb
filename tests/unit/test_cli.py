"""The conventions of the command line: exit codes, text for people, JSON for programs."""

import json
import re
import tomllib
from pathlib import Path

import click
import pytest

import tidemill
from tidemill import cli
from tidemill.cli import main
from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import UNEXPECTED, RunnerDied, StoreUnavailable

ROOT = Path(__file__).parents[2]


@click.command()
@click.argument("how")
@click.option("--count", type=int, default=1)
@json_option
def probe(output: CommandOutput, how: str, count: int) -> int | None:
    """A command for tests."""
    match how:
        case "error":
            raise StoreUnavailable("no answer from postgresql://db [red]x[/red]")
        case "hintless":
            raise StoreUnavailable("no answer", hint="")
        case "interrupt":
            raise KeyboardInterrupt
        case "abort":
            raise click.Abort
        case "code":
            return 7
        case "file":
            raise click.FileError("x.toml", "not found")
        case "bug":
            raise ZeroDivisionError("division")
        case "died":
            raise RunnerDied("20 child processes in a row ended within 10 s")
    output.people.print("for people")
    output.result({"count": count})
    return None


@pytest.fixture(autouse=True)
def with_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "probe", f"{__name__}:probe")
    monkeypatch.setenv("COLUMNS", "200")


def test_a_command_exits_with_0_by_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["probe", "well"]) == 0
    assert capsys.readouterr() == ("for people\n", "")
    assert main(["probe", "code"]) == 7


def test_with_json_standard_output_contains_only_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "well", "--count", "3", "--json"]) == 0
    assert capsys.readouterr() == ('{"count":3}\n', "for people\n")


def test_an_error_is_printed_with_its_hint_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "error"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "error: no answer from postgresql://db [red]x[/red]",
        f"hint: {StoreUnavailable.hint}",
    ]
    assert main(["probe", "hintless"]) == 1
    assert capsys.readouterr().err == "error: no answer\n"


def test_an_error_with_json_is_an_object_with_a_stable_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--json", "error"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "error": {
            "code": "store-unavailable",
            "message": "no answer from postgresql://db [red]x[/red]",
            "hint": StoreUnavailable.hint,
        }
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["probe"], "Missing argument 'HOW'."),
        (["probe", "well", "--count", "many"], "Invalid value for '--count': 'many' is not a valid integer."),
        (["probe", "well", "--unknown"], "No such option '--unknown'."),
        (["nothing"], "No such command 'nothing'."),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_help(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: tidemill ")
    assert f"error: {message}" in err
    assert "--help" in err.splitlines()[-1]


def test_wrong_usage_with_json_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--count", "many", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["hint"]) == ("usage", "see tidemill probe --help")


@pytest.mark.parametrize("how", ["interrupt", "abort"])
def test_an_interrupt_exits_with_130(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", how]) == 130
    out, err = capsys.readouterr()
    assert (out, err.strip()) == ("", "interrupted")
    assert main(["probe", how, "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "interrupted"


def test_a_file_that_cannot_be_opened_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "file", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "file"


def test_a_bug_is_reported_in_one_line_and_raised_when_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["probe", "bug"]) == UNEXPECTED == 70
    error, hint = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"error: ZeroDivisionError: division \(unit/test_cli.py:\d+\)", error)
    assert "TIDEMILL_DEBUG=1" in hint
    assert main(["probe", "bug", "--json"]) == 70
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unexpected"
    monkeypatch.setenv("TIDEMILL_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["probe", "bug"])


def test_a_runner_whose_processes_keep_dying_has_its_own_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["probe", "died", "--json"]) == RunnerDied.exit_code == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "runner-died"


def test_json_applies_to_one_run_only(capsys: pytest.CaptureFixture[str]) -> None:
    main(["probe", "well", "--json"])
    capsys.readouterr()
    assert main(["probe", "error"]) == 1
    assert capsys.readouterr().out == ""


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"tidemill {tidemill.__version__} (Python 3.")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_help_lists_the_commands_with_a_line_each(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == (0 if arguments else 2)
    text = "".join(capsys.readouterr())
    assert "error" not in text.partition("Exit codes")[0]
    assert "Tidemill keeps tables up to date" in text
    assert re.search(r"demo +Show a pipeline that survives kill -9 and check its result\.", text)
    assert "Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted." in text


def test_every_command_loads_and_accepts_json() -> None:
    context = click.Context(cli.tidemill)
    for name in cli.COMMANDS:
        command = cli.tidemill.get_command(context, name)
        assert command is not None
        assert command.help
        assert "--json" in {option for each in command.params for option in each.opts}


def test_the_exit_codes_are_documented() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    for code in ("0", "1", "2", "3", "70", "130", "141", "143"):
        assert f"\n| {code} | " in page


def test_the_installed_script_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"tidemill": "tidemill.cli:main"}
