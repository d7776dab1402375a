"""The suite's own options. A plugin, not part of conftest.py: pytest must know them before it looks for conftest.py files,
or it would take the path behind --vela for a place to look for tests. `run` and pytest.ini load it."""

import os


def pytest_addoption(parser):
    group = parser.getgroup("broker under test")
    group.addoption("--broker", help="pulsar:// URL of a running broker; without it the suite starts Vela")
    group.addoption("--admin", help="http:// URL of the running broker's web port")
    group.addoption("--vela", default=os.environ.get("VELA_BIN"), help="the Vela binary [VELA_BIN, else target/…/{ci,release,debug}/vela]")
    group.addoption("--cores", default="1", help="cores of the Vela that is started [1]")
    group.addoption("--sync", choices=["always", "interval", "never"], help="Vela's --sync, if not its default")
