"""The committed code under protos/gen is what the .proto files say, and imports cleanly."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROTOS = ROOT / "protos"


def contents(folder: Path) -> dict[str, str]:
    """Relative path -> text of every generated file below `folder`."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_generated_code_is_current(tmp_path: Path) -> None:
    """Prevents a .proto edit whose generated code was not committed with it."""
    spec = importlib.util.spec_from_file_location("generate_protos", PROTOS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.generate(tmp_path)
    fresh, committed = contents(tmp_path), contents(PROTOS / "gen")
    stale = sorted(n for n in fresh.keys() | committed.keys() if fresh.get(n) != committed.get(n))
    assert stale == [], "run `make protos` and commit"


def test_generated_code_imports_without_warnings() -> None:
    """Prevents stubs that newer grpcio or protobuf releases warn about or refuse."""
    modules = sorted(path.stem for path in (PROTOS / "gen/domino_serve/v1").glob("*_pb2*.py"))
    assert "generate_pb2_grpc" in modules
    imports = "; ".join(f"import domino_serve.v1.{module}" for module in modules)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", imports],
        cwd=PROTOS / "gen",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
