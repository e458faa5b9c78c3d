"""Writes the committed stubs beside their .proto files: `python proto/generate.py [OUT]` (`make proto`).

With OUT, writes them there in the same layout: the drift test compares the two (tests/test_house.py).
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent


def generate(out: Path) -> None:
    """Runs protoc over every .proto below this folder. Raises SystemExit when protoc refuses one."""
    protos = sorted(str(p.relative_to(ROOT)) for p in ROOT.rglob("*.proto"))
    plugins = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    include = str(files("grpc_tools") / "_proto")
    if protoc.main(["protoc", f"-I{ROOT}", f"-I{include}", *plugins, *protos]) != 0:
        raise SystemExit("protoc failed: see above")
    for proto in protos:  # a file without services needs no gRPC stubs
        if "\nservice " not in (ROOT / proto).read_text():
            for stub in out.glob(proto.removesuffix(".proto") + "_pb2_grpc.py*"):
                stub.unlink()


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
