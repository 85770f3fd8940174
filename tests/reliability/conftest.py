"""The command line and its small study, as the tests of the command line have them."""

from tests.cli.conftest import here, study, workbench

__all__ = ["here", "study", "workbench"]
