"""What NVML calls a GPU, as this project names it: `NVIDIA H100 80GB HBM3` is product `H100-SXM5-80GB` of model `H100` (SPEC B2).

The table is gpu_models.json, read and checked when this module is imported; an operator may give another (`use`). One more part
costs a line there, and a raised `version`: hosts with a name that was unknown until then plan again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bettercompute.contract.gpu_models_check import complaints

OTHER = "other"  # the model of a GPU whose name the table does not know

FILE = Path(__file__).with_name("gpu_models.json")
_CAPITALS = {ord(letter): letter.upper() for letter in "abcdefghijklmnopqrstuvwxyz"}  # str.upper() knows more than ASCII
_OUTSIDE = re.compile(r"[^A-Z0-9]+")


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU's normalized names and what the table says of the part; None where it does not say.

    `model`: the family, OTHER when the name is unknown. `form`: `SXM5`, `PCIE`, `VGPU`, ... `memory_gb`: marketed size of the
    one GPU, or a vGPU's framebuffer (0: 512 MB). `architecture`: `hopper`, ... `nvlink`: `board`, `bridge` or `none`.
    `line`: the family's, `datacenter`, `geforce`, ... `host`: the physical product of a vGPU's board.
    """

    product: str
    model: str
    form: str | None = None
    memory_gb: int | None = None
    architecture: str | None = None
    mig_capable: bool | None = None
    max_mig_instances: int | None = None
    nvlink: str | None = None
    line: str | None = None
    host: str | None = None

    @property
    def known(self) -> bool:
        """Whether the table knows the name."""
        return self.model != OTHER


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table: the product at each size that the line allows, ascending, and the one when none was reported."""

    usual: Product
    sizes: tuple[Product, ...]
    names: tuple[str, ...]
    pci_device_ids: tuple[str, ...]

    def at(self, memory_mib: float | None) -> Product:
        """The product whose marketed size is nearest to what was reported, in MiB; the smaller one on a tie."""
        if not memory_mib or memory_mib < 0:
            return self.usual
        return min(self.sizes, key=lambda one: abs((one.memory_gb or 0) - memory_mib / 1024))


@dataclass(frozen=True, slots=True)
class Table:
    """gpu_models.json as values.

    `families`: model to its line. `entries`: by product. `by_name`: by the canonical form of an NVML name. `own_names`: product
    strings at every size, which stand for themselves. `boards`: a vGPU's board code to (model, host or None, bare profiles).
    """

    version: int
    families: Mapping[str, str]
    entries: Mapping[str, Entry]
    by_name: Mapping[str, Entry]
    own_names: Mapping[str, Product]
    boards: Mapping[str, tuple[str, str | None, bool]]
    profile: re.Pattern[str]

    def normalize(self, name: str, memory_mib: float | None = None) -> Product | None:
        """See `normalize_gpu_product`."""
        plain = canonical(name)
        if not plain:
            return None
        if plain in self.by_name:
            return self.by_name[plain].at(memory_mib)
        return self.own_names.get(plain) or self._vgpu(plain) or Product(plain, OTHER)

    def _vgpu(self, plain: str) -> Product | None:
        """`A100X-40C` by its profile, or `A100-VGPU-40GB`, which stands for itself."""
        if match := self.profile.fullmatch(plain):
            model, host, bare = self.boards[match["board"]]
            return self._slice(model, int(match["gb"]), host) if match["series"] or bare else None
        model, _, size = plain.rpartition("-VGPU-")
        known = re.fullmatch(r"(0|[1-9][0-9]{0,2})GB", size) and any(model == one for one, _, _ in self.boards.values())
        return self._slice(model, int(size[:-2]), None) if known else None

    def _slice(self, model: str, gigabytes: int, host: str | None) -> Product:
        """A slice never counts as its whole card: pools and meters go by model."""
        whole = next(entry.usual for entry in self.entries.values() if entry.usual.model == model)
        return Product(
            product=f"{model}-VGPU-{gigabytes}GB",
            model=f"{model}-VGPU",
            form="VGPU",
            memory_gb=gigabytes,
            architecture=whole.architecture,
            line=whole.line,
            host=host,
        )


def canonical(name: str) -> str:
    """A name without what spellings differ in.

    >>> canonical("NVIDIA H100 80GB HBM3"), canonical("NVIDIA-GeForce-RTX-3090"), canonical(" nvidia ")
    ('H100-80GB-HBM3', 'GEFORCE-RTX-3090', '')
    """
    plain = _OUTSIDE.sub("-", name.translate(_CAPITALS)).strip("-")
    return plain[6:].lstrip("-") if plain == "NVIDIA" or plain.startswith("NVIDIA-") else plain


def load(text: str) -> Table:
    """gpu_models.json's text as a Table. Raises ValueError that names the entry and the rule which it breaks."""
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise ValueError(f"gpu_models.json: {error}") from None
    if found := next(complaints(data, canonical), None):
        raise ValueError(f"gpu_models.json: {found}")
    families = {model: row["line"] for model, row in data["families"].items()}
    entries = {row["product"]: _entry(row, families) for row in data["products"]}
    vgpu = data["vgpu"]
    table = Table(
        version=data["version"],
        families=families,
        entries=entries,
        by_name={canonical(name): entry for entry in entries.values() for name in entry.names},
        # An entry whose own product a string is goes before one that merely allows its size.
        own_names={one.product: one for entry in entries.values() for one in entry.sizes}
        | {k: e.usual for k, e in entries.items()},
        boards={row["board"]: (row["model"], row.get("host"), row.get("bareProfiles", False)) for row in vgpu["boards"]},
        profile=re.compile(
            f"(?:(?:{_any_of(vgpu['prefixes'])})-)?(?P<board>{_any_of(row['board'] for row in vgpu['boards'])})"
            f"-(?:[0-9]-)?(?P<gb>[0-9]{{1,3}})(?P<series>{_any_of(vgpu['series'])})?"
        ),
    )
    for name in table.by_name:
        if table.profile.fullmatch(name):
            raise ValueError(f"gpu_models.json: name {name} also reads as a vGPU's profile")
    return table


def _entry(row: Mapping[str, Any], families: Mapping[str, str]) -> Entry:
    memory = row["memoryGb"]
    sizes = tuple(
        Product(
            product=f"{row['model']}-{row['form']}-{size}GB",
            model=row["model"],
            form=row["form"],
            memory_gb=size,
            architecture=row["architecture"],
            mig_capable=row.get("migCapable"),
            max_mig_instances=row.get("maxMigInstances"),
            nvlink=row.get("nvlink"),
            line=families[row["model"]],
        )
        for size in (memory if isinstance(memory, list) else [memory])
    )
    usual = next(one for one in sizes if one.product == row["product"])
    return Entry(usual, sizes, tuple(row["names"]), tuple(row["pciDeviceIds"]))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(
            f"gpu_models.json: key {next(key for key in keys if keys.count(key) > 1)!r} is there twice in one object"
        )
    return made


def _any_of(words: Iterator[str] | list[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


GPU_MODELS = load(FILE.read_text())  # the table that comes with this version
_in_force = [GPU_MODELS]


def use(table: Table) -> None:
    """From now on names are looked up in this table, in the whole process: an operator's, for parts newer than this version."""
    _in_force[0] = table


def in_force() -> Table:
    """The table that names are looked up in."""
    return _in_force[0]


def normalize_gpu_product(name: str, memory_mib: float | None = None) -> Product | None:
    """The product and model of an NVML name; None for a name with no letter or digit but `NVIDIA`: it is as good as missing.

    `memory_mib`: of the one GPU, as NVML reports it; where one name covers several sizes it decides. None or 0: not reported
    (a GPU of form `SOC` shares the host's memory: give that). An unknown name is its own canonical form, of model OTHER.

    >>> made = normalize_gpu_product("NVIDIA GeForce RTX 3060", 8192)
    >>> made.product, made.model
    ('RTX-3060-PCIE-8GB', 'RTX-3060')
    """
    return in_force().normalize(name, memory_mib)
