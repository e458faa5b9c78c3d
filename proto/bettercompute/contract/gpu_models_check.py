"""What must hold of gpu_models.json. One more rule costs a function of a row, or of the whole, that tells what is wrong."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

WORDS: Mapping[str, frozenset[str]] = {
    "architecture": frozenset(("kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")),
    "nvlink": frozenset(("board", "bridge", "none")),
    "line": frozenset(("flagship", "datacenter", "workstation", "geforce", "titan", "soc", "mining")),
}
_NEEDED = {"product", "model", "form", "memoryGb", "architecture", "names", "pciDeviceIds"}
_MAY = {"migCapable", "maxMigInstances", "nvlink"}
_SAME = ("architecture", "migCapable", "maxMigInstances", "nvlink")  # of two lines that allow one product string
_TOKENS = r"[A-Z0-9]+(?:-[A-Z0-9]+)*"
_CHARACTERS = 63  # of a product: it is a label's value
_VGPU = "VGPU"


def complaints(data: Row, canonical: Callable[[str], str]) -> Iterator[str]:
    """What is wrong with the table, in words that name the entry; nothing when it is right."""
    if not isinstance(data, dict) or not {"version", "forms", "families", "products", "vgpu"} <= data.keys():
        yield "it is no object of version, forms, families, products and vgpu"
        return
    if not _is_count(data.get("version")):
        yield f"version {data.get('version')!r} is no number above 0"
    for row in data["products"]:
        yield from (f"product {row.get('product')!r}: {found}" for found in _product(row, data))
    for row in data["vgpu"]["boards"]:
        yield from (f"board {row.get('board')!r}: {found}" for found in _board(row, data))
    for model, row in data["families"].items():
        yield from (f"family {model!r}: {found}" for found in _family(model, row, data["products"]))
    yield from _whole(data, canonical)


def _product(row: Row, data: Row) -> Iterator[str]:
    if not _NEEDED <= row.keys() <= _NEEDED | _MAY:
        yield f"its fields are {', '.join(row)}"
        return
    sizes = _sizes(row)
    if not all(map(_is_count, sizes)) or not _rises(sizes) or (isinstance(row["memoryGb"], list) and len(sizes) < 2):
        yield f"memoryGb {row['memoryGb']!r} is neither a number above 0 nor an ascending list"
    if row["product"] not in _strings(row):
        yield "it is not made of its model, form and one of its sizes"
    if not re.fullmatch(rf"{_TOKENS}-[A-Z0-9]+-[1-9][0-9]*GB", row["product"]) or len(row["product"]) > _CHARACTERS:
        yield f"it is not MODEL-FORM-SIZEGB in at most {_CHARACTERS} characters"
    if row["form"] not in data["forms"] or row["form"] == _VGPU:
        yield f"form {row['form']!r} is none of a board"
    if row["model"] not in data["families"]:
        yield f"model {row['model']!r} is no family"
    for field in ("architecture", "nvlink"):
        if field in row and row[field] not in WORDS[field]:
            yield f"{field} {row[field]!r} is none of {', '.join(sorted(WORDS[field]))}"
    if not isinstance(row.get("migCapable", False), bool):
        yield f"migCapable {row['migCapable']!r} is neither true nor false"
    if "maxMigInstances" in row and not (row.get("migCapable") is True and _is_count(row["maxMigInstances"])):
        yield "maxMigInstances goes with migCapable true, and is a number above 0"
    for field in ("names", "pciDeviceIds"):
        if not _rises(row[field]):
            yield f"{field} are not sorted"
    if not row["names"] or not all(re.fullmatch("[0-9a-f]{4}", one) for one in row["pciDeviceIds"]):
        yield "it has no names, or a PCI device id that is not four digits of lower-case hexadecimal"


def _board(row: Row, data: Row) -> Iterator[str]:
    if not {"board", "model"} <= row.keys() <= {"board", "model", "host", "bareProfiles"}:
        yield f"its fields are {', '.join(row)}"
        return
    if not re.fullmatch(_TOKENS, row["board"]):
        yield "it is no canonical form"
    if row["model"] not in {one["model"] for one in data["products"]}:
        yield f"model {row['model']!r} is no product's"
    if "host" in row and not any(row["host"] in _strings(one) for one in data["products"]):
        yield f"host {row['host']!r} is no product"


def _family(model: str, row: Row, products: Sequence[Row]) -> Iterator[str]:
    if row.keys() != {"line"} or row["line"] not in WORDS["line"]:
        yield f"line {row.get('line')!r} is none of {', '.join(sorted(WORDS['line']))}"
    architectures = sorted({one["architecture"] for one in products if one["model"] == model})
    if len(architectures) != 1:
        yield f"its products have the architectures {', '.join(architectures)}" if architectures else "it has no product"


def _whole(data: Row, canonical: Callable[[str], str]) -> Iterator[str]:
    products, vgpu = data["products"], data["vgpu"]
    for what, listed in (
        ("products", [row["product"] for row in products]),
        ("vgpu.boards", [row["board"] for row in vgpu["boards"]]),
        ("vgpu.prefixes", vgpu["prefixes"]),
        ("vgpu.series", vgpu["series"]),
    ):
        if not _rises(listed):
            yield f"{what} are not sorted, or one is there twice"
    names: dict[str, str] = {}
    for name in (name for row in products for name in row["names"]):
        plain = canonical(name)
        if not plain or names.setdefault(plain, name) is not name:
            yield f"name {name!r} is empty or another spelling of {names.get(plain)!r}"
    allowed: dict[str, Row] = {}
    for text, one in ((text, row) for row in products for text in _strings(row)):
        other = allowed.setdefault(text, one)
        if any(other.get(field) != one.get(field) for field in _SAME):
            yield f"products {other['product']!r} and {one['product']!r} both allow {text} and differ"
    for text in allowed.keys() & names.keys():
        if not any(canonical(name) == text for name in allowed[text]["names"]):
            yield f"name {names[text]!r} is the product string of another line"


def _sizes(row: Row) -> Sequence[Any]:
    return row["memoryGb"] if isinstance(row["memoryGb"], list) else [row["memoryGb"]]


def _strings(row: Row) -> list[str]:
    return [f"{row['model']}-{row['form']}-{size}GB" for size in _sizes(row)]


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _rises(listed: Sequence[Any]) -> bool:
    return all(a < b for a, b in itertools.pairwise(listed))
