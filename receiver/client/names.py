"""`better-compute gpu-name NAME`: what this version calls a GPU. Asks no receiver; part of the base install."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from bettercompute.contract.gpu_models import GPU_MODELS, normalize_gpu_product

from receiver.client.render import render

HELP = """\
exit codes:
  0  answered, also where the table does not know the name: then gpuModel is `other`
  2  the name holds no word, or wrong use

examples:
  better-compute gpu-name "NVIDIA H100 80GB HBM3"
  better-compute gpu-name "NVIDIA GeForce RTX 3060" --memory-mib 8192
"""


def main(argv: Sequence[str]) -> int:
    """The command line behind `gpu-name`; answers the exit code."""
    arguments = _parser().parse_args(argv)
    found = normalize_gpu_product(arguments.name, arguments.memory_mib)
    if found is None:
        sys.stderr.write(
            f"better-compute: gpu-name {arguments.name!r}: no letter or digit in it but NVIDIA\n"
            "  give the name as `nvidia-smi -L` prints it\n"
        )
        return 2
    answer = {"gpuProduct": found.product, "gpuModel": found.model}
    if arguments.format == "json":
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        render(answer, arguments.format, sys.stdout, datetime.now(UTC))
    if not found.known:
        sys.stderr.write(f"the table (version {GPU_MODELS.version}) does not know it: a node with it is GpuModelUnknown\n")
    return 0


def _memory(text: str) -> float:
    value = float(text)
    if not 0 < value < 1 << 40:
        raise ValueError
    return value


_memory.__name__ = "number of MiB above 0"  # argparse says: invalid ... value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "better-compute gpu-name",
        description="The product and model of a GPU's NVML name, by the table of this version.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="the name as NVML reports it, in quotes")
    parser.add_argument(
        "--memory-mib", type=_memory, metavar="N", help="its memory in MiB: decides where one name covers several sizes"
    )
    parser.add_argument("--format", choices=["table", "json", "yaml"], default="json", help="how to print (default: json)")
    return parser
