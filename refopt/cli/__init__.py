"""The command `refopt`: each module adds its own commands."""

import os
import sys

from refopt.cli import bench as bench
from refopt.cli import check as check
from refopt.cli import diagnose as diagnose
from refopt.cli import matrix as matrix
from refopt.cli import teach as teach
from refopt.cli import vectors as vectors
from refopt.cli.base import app


def main() -> None:
    """The entry point."""
    if sys.argv[1:2] == ["trace"]:  # a table is there before a compiler is loaded
        os.environ.setdefault("REFOPT_ENGINE", "tape")
    app()
