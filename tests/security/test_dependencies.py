"""What is installed and what the code may load: versions are pinned, nothing is unpickled."""

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "serving", "router", "draft_service", "verify_service", "domino_client", "domino_cli",
    "training", "kernels",
)  # fmt: skip
# Comes with the environment, and with torch's CUDA builds.
NOT_OURS = re.compile("setuptools|nvidia-.*|cuda-.*")
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "shelve", "marshal", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"torch.load", "numpy.load", "np.load", "eval", "exec", "yaml.load", "os.system"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {normal(name): version.strip() for name, version in pinned}


def needed(name: str, extra: str, found: dict[str, str]) -> dict[str, str]:
    """Versions of everything installed that `name[extra]` needs here."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        key = normal(requirement.name)
        extras = requirement.extras or {""}
        if key == normal(name):
            for inner in extras:
                needed(name, inner, found)
        elif key not in found:
            try:
                found[key] = metadata.version(key)
            except metadata.PackageNotFoundError:
                continue
            for inner in extras:
                needed(key, inner, found)
    return found


def test_every_dependency_is_pinned() -> None:
    """Prevents a version that nobody has looked at from coming in by a dependency's dependency."""
    installed = needed("domino-serve", "dev", {})
    assert len(installed) > 50, "the list of dependencies was not followed"
    pinned = pins()
    found = {
        name: version.partition("+")[0]
        for name, version in installed.items()
        if not NOT_OURS.fullmatch(name)
    }
    assert found == {name: pinned.get(name) for name in found}


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_unpickled_or_evaluated(package: str) -> None:
    """Prevents a checkpoint, a cache or a config file that runs code when it is read."""
    found = []
    for file in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name in FORBIDDEN_IMPORTS]
            elif isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN_IMPORTS:
                names = [node.module]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN_CALLS:
                names = [ast.unparse(node.func)]
            found += [f"{file.relative_to(ROOT)}:{node.lineno} {name}" for name in names]  # type: ignore[attr-defined]
    assert found == []
