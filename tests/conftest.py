"""Settings of every test: which forerun is tested, and hypothesis without deadlines (CI machines are shared)."""

import os
from pathlib import Path

import hypothesis
import pytest

import forerun

hypothesis.settings.register_profile("forerun", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("forerun")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which installation is under test: `make test` tests the one in .venv, not the source folder."""
    return f"forerun {forerun.__version__} from {Path(forerun.__file__).parent}"
