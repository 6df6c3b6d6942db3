"""Print the requirements of groups in pyproject.toml, one a line, for `pip install -r /dev/stdin`.

    list_requirements.py build          what building needs; CMake and Ninja only if the system has none new enough
    list_requirements.py run parity     what running needs, and an extra of the project

With this the Makefile can install a group without building the package again, and versions stand in one file.
"""

import sys
import tomllib
from pathlib import Path


def requirements(group: str) -> list[str]:
    """Requirement strings of `group`."""
    with (Path(__file__).parents[1] / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    if group == "run":
        return list(project["project"]["dependencies"])
    if group != "build":
        return list(project["project"]["optional-dependencies"][group])
    needed = list(project["build-system"]["requires"])
    try:
        from scikit_build_core.build import get_requires_for_build_wheel
    except ModuleNotFoundError:  # first call: it is about to be installed
        return needed
    return needed + get_requires_for_build_wheel()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: list_requirements.py GROUP...")
    print("\n".join(requirement for group in sys.argv[1:] for requirement in requirements(group)))
