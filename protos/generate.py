"""Writes protos/gen from protos/domino_serve: the only generator of committed code.

Run `python protos/generate.py` after editing a .proto; tests/test_protos.py fails until you do.
grpcio-tools 1.76.0 on purpose: newer ones emit code that older protobuf runtimes refuse.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


def generate(out: Path) -> None:
    """Writes messages, stubs and type stubs of every proto file under `out`."""
    out.mkdir(parents=True, exist_ok=True)
    protos = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("domino_serve/**/*.proto"))
    well_known = str(files("grpc_tools") / "_proto")
    flags = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    # Beside this Python, which need not be the one that PATH finds.
    scripts = Path(sys.executable).parent
    plugins = [f"--plugin={name}={scripts / name}" for name in PLUGINS]
    code = protoc.main(["protoc", f"-I{ROOT}", f"-I{well_known}", *plugins, *flags, *protos])
    if code != 0:
        raise SystemExit(f"protoc failed with exit code {code}")
    for package in (out / "domino_serve", out / "domino_serve" / "v1"):
        (package / "__init__.py").touch()
        (package / "py.typed").touch()


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "gen")
