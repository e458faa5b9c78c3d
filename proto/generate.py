"""Writes the committed stubs beside their .proto files: `python proto/generate.py [OUT]` (`make proto`).

With OUT, writes them there in the same layout: the drift test compares the two (tests/test_house.py).
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
REPOSITORY = ROOT.parent
# Import root -> folder below it with .proto files: the contract, and the part of the CRI that bcd speaks.
TREES = ((ROOT, "bettercompute"), (REPOSITORY, "agent/cri"))


def generate(out: Path | None) -> None:
    """Runs protoc over every .proto of TREES, into `out` or beside them. Raises SystemExit when protoc refuses one."""
    include = str(files("grpc_tools") / "_proto")
    for root, folder in TREES:
        target = out or root
        protos = sorted(str(p.relative_to(root)) for p in (root / folder).rglob("*.proto"))
        plugins = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
        if protoc.main(["protoc", f"-I{root}", f"-I{include}", *plugins, *protos]) != 0:
            raise SystemExit("protoc failed: see above")
        for proto in protos:  # a file without services needs no gRPC stubs
            if "\nservice " not in (root / proto).read_text():
                for stub in target.glob(proto.removesuffix(".proto") + "_pb2_grpc.py*"):
                    stub.unlink()


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
