import os
import signal
import subprocess
import sys

import pytest

from tidemill import crash
from tidemill.testing.threads import STUCK_S, together


def test_a_point_that_is_not_armed_does_nothing() -> None:
    crash.point("a")
    with crash.armed("b"):
        crash.point("a")


@pytest.mark.parametrize("visit", [1, 2, 5])
def test_an_armed_point_crashes_only_on_that_visit(visit: int) -> None:
    with crash.armed("a", visit=visit):
        for _ in range(visit - 1):
            crash.point("a")
        with pytest.raises(crash.Crashed, match=r"^a$"):
            crash.point("a")
        for _ in range(3):
            crash.point("a")
    crash.point("a")


def test_a_point_is_disarmed_at_the_end_also_by_the_crash_itself() -> None:
    with pytest.raises(crash.Crashed), crash.armed("a"):
        crash.point("a")
    crash.point("a")


def test_several_points_are_armed_at_once_each_with_its_own_count() -> None:
    with crash.armed("a", visit=2), crash.armed("b"):
        crash.point("a")
        with pytest.raises(crash.Crashed, match=r"^b$"):
            crash.point("b")
        with pytest.raises(crash.Crashed, match=r"^a$"):
            crash.point("a")


def test_a_point_armed_inside_its_own_arming_gives_back_the_outer_one() -> None:
    with crash.armed("a", visit=2):
        with pytest.raises(crash.Crashed), crash.armed("a"):
            crash.point("a")
        crash.point("a")
        with pytest.raises(crash.Crashed):
            crash.point("a")


def test_a_crash_is_not_an_exception_that_code_can_catch() -> None:
    assert not issubclass(crash.Crashed, Exception)


def test_of_many_threads_one_crashes() -> None:
    def work() -> int:
        crashes = 0
        for _ in range(50):
            try:
                crash.point("a")
            except crash.Crashed:
                crashes += 1
        return crashes

    with crash.armed("a", visit=77):
        assert sum(together(*[work] * 4)) == 1


def test_the_points_that_are_visited_are_recorded() -> None:
    crash.point("before")
    with crash.recorded() as names:
        crash.point("a")
        with crash.recorded() as inner:
            crash.point("b")
        crash.point("c")
        with pytest.raises(crash.Crashed), crash.armed("d"):
            crash.point("d")
    crash.point("after")
    assert inner == {"b"}
    assert names == {"a", "b", "c", "d"}


def in_a_process(spec: str | None) -> subprocess.CompletedProcess[str]:
    program = """if True:
        from tidemill import crash
        crash.arm_from_environment()
        for n in (1, 2, 3):
            print(n, flush=True)
            crash.point("step.before_commit")
        print("end", flush=True)
    """
    env = {name: value for name, value in os.environ.items() if name != crash.ENVIRONMENT}
    if spec is not None:
        env[crash.ENVIRONMENT] = spec
    return subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=STUCK_S, check=False
    )


@pytest.mark.parametrize(
    ("spec", "printed"),
    [
        ("step.before_commit", "1"),
        ("step.before_commit:1", "1"),
        ("step.before_commit:3", "123"),
        ("step.before_commit:2,step.before_commit", "12"),
    ],
)
def test_the_environment_arms_a_point_that_kills_the_process(spec: str, printed: str) -> None:
    ended = in_a_process(spec)
    assert ended.returncode == -signal.SIGKILL
    assert "".join(ended.stdout.split()) == printed


@pytest.mark.parametrize(
    "spec",
    [None, "", "step.after_commit", "step.before_commit:4", "step.after_commit,step.before_commit"],
)
def test_a_process_that_does_not_come_to_an_armed_point_ends_well(spec: str | None) -> None:
    ended = in_a_process(spec)
    assert (ended.returncode, ended.stdout.split()[-1], ended.stderr) == (0, "end", "")


def test_each_run_of_a_restarted_process_has_its_own_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(crash.ENVIRONMENT, "a.before:2,b.after")
    assert [crash.in_run(number) for number in range(3)] == ["a.before:2", "b.after", ""]
    monkeypatch.delenv(crash.ENVIRONMENT)
    assert crash.in_run(0) == ""
