"""The layout rules of the project, as tests: who may import whom, and what stays torch-free."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = {
    "domino_serve": "protos/gen/domino_serve",
    "domino_kernels": "kernels/domino_kernels",
}

# Package -> the packages of ours it may import. Whoever is missing here may import everything.
ALLOWED = {
    "domino_serve": {"domino_serve"},
    "domino_kernels": {"domino_kernels"},
    "serving": {"domino_serve", "serving"},
    "draft_service": {"domino_serve", "domino_kernels", "serving", "draft_service"},
    "verify_service": {"domino_serve", "domino_kernels", "serving", "verify_service"},
    "router": {"domino_serve", "serving", "router"},
    "domino_client": {"domino_serve", "serving", "domino_client"},
    # The services' model code, never a second copy of it; no service imports training.
    "training": {
        *("domino_serve", "domino_kernels", "serving", "training"),
        *("draft_service", "verify_service", "router"),
    },
}
OURS = {*ALLOWED, "domino_cli", "loadtest", "benchmarks", "tests"}
TORCH_FREE = ["serving", "router", "domino_client", "domino_cli"]
# Modules for tensors inside torch-free packages: engines import them, or a command that needs them.
TENSOR_MODULES = [
    "serving.device",
    "serving.rank_link",
    "serving.ranks",
    "serving.self_test",
    "serving.tensors",
    "serving.transport.choice",
    "serving.transport.cuda_ipc",
    "serving.transport.early",
    "serving.transport.nccl",
    "serving.transport.nccl_pair",
    "serving.transport.receiver",
    "serving.transport.sender",
    "serving.transport.shm",
    "serving.transport.tcp_pair",
    "domino_cli.gguf_convert",
    "domino_cli.in_process",
    "domino_cli.local_link",
    "domino_cli.one_process_engines",
]

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if module.name not in sys.argv[2:]:
        importlib.import_module(module.name)
loaded = sorted({"torch", "transformers"} & set(sys.modules))
sys.exit(f"{sys.argv[1]} imports {loaded}" if loaded else 0)
"""


def python_files(package: str) -> list[Path]:
    return sorted((ROOT / SOURCE_ROOTS.get(package, package)).rglob("*.py"))


def imported_packages(file: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every absolute import, those inside functions included."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.split(".")[0]


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_in_the_agreed_direction(package: str) -> None:
    """Prevents services that know each other's insides and so cannot be split over machines."""
    files = python_files(package)
    assert files, f"{package} has no Python files"
    forbidden = OURS - ALLOWED[package]
    found = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in files
        for line, name in imported_packages(file)
        if name in forbidden
    ]
    assert found == []


@pytest.mark.parametrize("package", TORCH_FREE)
def test_front_packages_import_no_torch(package: str) -> None:
    """Prevents a router or client that needs gigabytes of torch installed only to start."""
    command = [sys.executable, "-c", IMPORT_ALL, package, *TENSOR_MODULES]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_kernels_is_a_source_root_and_not_a_package() -> None:
    """Prevents shadowing Hugging Face's `kernels`, which breaks transformers' model imports."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert not (ROOT / "protos" / "gen" / "__init__.py").exists()


def test_no_file_is_called_utils() -> None:
    """Prevents the drawer where code without an owner collects."""
    names = {path.name for package in OURS for path in python_files(package)}
    assert names.isdisjoint({"utils.py", "util.py", "helpers.py", "common.py", "misc.py"})
