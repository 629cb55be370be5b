"""What pyproject.toml cannot say: pages of the documentation that the commands show go into the wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PAGES = ("docs/reference/messages.md", "docs/how-to/read-a-warning.md")


class WithPages(build_py):
    """Copies the pages beside the modules. In an editable installation they are read where they are written."""

    def run(self) -> None:
        """Build."""
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib, "detrain", "pages")
        folder.mkdir(parents=True, exist_ok=True)
        for page in PAGES:
            shutil.copy(page, folder)


setup(cmdclass={"build_py": WithPages})
