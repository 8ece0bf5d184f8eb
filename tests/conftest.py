"""What every test may use. The plugins say more: which rules were tested, and the servers."""

import gc
import os
import signal

import hypothesis
import pytest

# The tests that backends share are in the package, and a failing assert there should show its values too.
# Pytest can only rewrite modules that are not imported yet.
pytest.register_assert_rewrite("tidemill.testing")

from tests import leases, patience  # noqa: E402

# No deadline: limits of time are shown by a bench. `make test` asks the same of everyone who runs it;
# `make crash`, which has a seed, asks something new each time.
hypothesis.settings.register_profile("tidemill", deadline=None, derandomize="TIDEMILL_SEED" not in os.environ)
hypothesis.settings.load_profile("tidemill")

# A `tidemill run` of a test would make an archive of Spark's classes in the cache folder of the user.
os.environ.setdefault("TIDEMILL_CLASS_ARCHIVE", "off")

pytest_plugins = ["pytester", "tests.plugin_rules", "tests.plugin_times", "tests.servers.fixtures"]


# A shell starts background jobs with SIGINT ignored. Processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

patience.lengthen_transactions()
leases.lengthen()


def pytest_collection() -> None:
    """What thousands of collected tests hold stays: looking through it for garbage takes long each time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000)
