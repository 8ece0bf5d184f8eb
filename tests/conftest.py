"""What every test may use. The plugins say more: which rules were tested, and the servers."""

import hypothesis
import pytest

hypothesis.settings.register_profile("tidemill", deadline=None)  # limits of time are shown by a bench
hypothesis.settings.load_profile("tidemill")

# The laws that backends share live in the package: a failing assert there should show its values too.
pytest.register_assert_rewrite("tidemill.testing")

pytest_plugins = ["pytester", "tests.plugin_rules", "tests.servers.fixtures"]
