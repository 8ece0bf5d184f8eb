"""What every test may use. The plugins say more: which rules were tested, and the servers."""

pytest_plugins = ["pytester", "tests.plugin_rules", "tests.servers.fixtures"]
