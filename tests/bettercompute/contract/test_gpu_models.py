"""GPU names: that gpu_models.json is right in itself, and the rules of looking a name up, over the whole table."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bettercompute.contract
import pytest
from bettercompute.contract.gpu_models import GPU_MODELS, OTHER, canonical, load, normalize_gpu_product

TEXT = (Path(bettercompute.contract.__file__).parent / "gpu_models.json").read_text()
DATA = json.loads(TEXT)
PRODUCTS, BOARDS = DATA["products"], DATA["vgpu"]["boards"]


def named(name: str, memory_mib: float | None = None) -> tuple[str, str] | None:
    found = normalize_gpu_product(name, memory_mib)
    return (found.product, found.model) if found else None


def sizes(row: dict[str, Any]) -> list[int]:
    return row["memoryGb"] if isinstance(row["memoryGb"], list) else [row["memoryGb"]]


def line(product: str, data: dict[str, Any] = DATA) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in data["products"] if row["product"] == product)
    return found


# ---------------------------------------------------------------- looking a name up


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3"),
        ("NVIDIA GeForce RTX 3090", "GEFORCE-RTX-3090"),
        ("GeForce RTX 3090", "GEFORCE-RTX-3090"),
        ("NVIDIA-GeForce-RTX-3090", "GEFORCE-RTX-3090"),
        ("  nvidia  A10\t", "A10"),
        ("NVIDIA NVIDIA A10", "NVIDIA-A10"),  # one leading token
        ("NVIDIAX A10", "NVIDIAX-A10"),  # exactly NVIDIA
        ("A10 NVIDIA", "A10-NVIDIA"),
        ("Orin (nvgpu)", "ORIN-NVGPU"),
        ("straße ı é", "STRA-E"),  # ASCII letters only: nothing becomes SS or I
        ("NVIDIA", ""),
        (" - ", ""),
        ("", ""),
    ],
)
def test_the_canonical_form_is_what_spellings_share(name: str, plain: str) -> None:
    assert canonical(name) == plain


def test_every_name_of_the_table_is_its_product_in_any_spelling() -> None:
    for row in PRODUCTS:
        for name in row["names"]:
            expected = (row["product"], row["model"])
            spellings = {name, canonical(name), name.lower(), f" {name.replace(' ', '--')}_", f"NVIDIA {canonical(name)}"}
            assert {named(spelling) for spelling in spellings} == {expected}, name


def test_a_size_list_takes_the_size_nearest_to_the_memory() -> None:
    for row in PRODUCTS:
        for size in sizes(row):
            product = f"{row['model']}-{row['form']}-{size}GB"
            near = {named(row["names"][0], size * 1024 * share) for share in (0.992, 1, 1.005)}
            assert near == {(product, row["model"])}, product


@pytest.mark.parametrize(
    ("name", "mib", "product"),
    [
        ("NVIDIA GeForce RTX 3060", 8192, "RTX-3060-PCIE-8GB"),
        ("NVIDIA GeForce RTX 3060", None, "RTX-3060-PCIE-12GB"),
        ("NVIDIA GeForce RTX 3060", 0, "RTX-3060-PCIE-12GB"),  # no reading is not a small one
        ("NVIDIA GeForce RTX 3060", 10 * 1024, "RTX-3060-PCIE-8GB"),  # a tie: the smaller one
        ("NVIDIA GeForce RTX 3060", 10 * 1024 + 1, "RTX-3060-PCIE-12GB"),
        ("NVIDIA H100", 65247, "H100-SXM5-64GB"),
        ("NVIDIA H100", 81559, "H100-SXM5-80GB"),
        ("NVIDIA H100", None, "H100-SXM5-94GB"),
        ("NVIDIA H100", 10**9, "H100-SXM5-96GB"),
        ("NVIDIA H100 80GB HBM3", 1024, "H100-SXM5-80GB"),  # a single number: memory changes nothing
        ("NVIDIA GH200 480GB", 97871, "GH200-SUPERCHIP-96GB"),  # named after the CPU's memory
    ],
)
def test_memory_decides_where_one_name_covers_several_sizes(name: str, mib: int | None, product: str) -> None:
    found = normalize_gpu_product(name, mib)
    assert found is not None
    assert found.product == product


def test_a_product_string_stands_for_itself_at_every_size() -> None:
    for row in PRODUCTS:
        for size in sizes(row):
            product = f"{row['model']}-{row['form']}-{size}GB"
            assert named(product) == named(product, 1024) == named(product.lower()) == (product, row["model"])
            found = normalize_gpu_product(product)
            assert found is not None
            assert (found.memory_gb, found.form, found.architecture) == (size, row["form"], row["architecture"])


def test_a_product_string_at_a_size_that_its_line_does_not_allow_is_unknown() -> None:
    assert named("RTX-3060-PCIE-13GB") == ("RTX-3060-PCIE-13GB", OTHER)


@pytest.mark.parametrize(
    "name", ["Graphics Device", "NVIDIA GPU-2322-17E2", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "A100-PCIE-41GB"]
)
def test_an_unknown_name_is_its_canonical_form_of_model_other(name: str) -> None:
    found = normalize_gpu_product(name, 81559)
    assert found is not None
    assert (found.product, found.model, found.known) == (canonical(name), "other", False)


@pytest.mark.parametrize("name", ["", " ", "NVIDIA", "nvidia -", "é", "---"])
def test_a_name_without_a_word_is_no_product(name: str) -> None:
    assert normalize_gpu_product(name, 81559) is None


def test_what_the_table_says_of_a_part_comes_with_it() -> None:
    for row in PRODUCTS:
        found = normalize_gpu_product(row["names"][-1])
        assert found is not None
        assert (found.mig_capable, found.max_mig_instances) == (row.get("migCapable"), row.get("maxMigInstances"))
        assert (found.nvlink, found.architecture) == (row.get("nvlink"), row["architecture"])
        assert found.line == DATA["families"][row["model"]]["line"]


# ---------------------------------------------------------------- vGPU names


@pytest.mark.parametrize(
    ("name", "product", "model"),
    [
        ("GRID A100X-40C", "A100-VGPU-40GB", "A100-VGPU"),
        ("NVIDIA A100-40C", "A100-VGPU-40GB", "A100-VGPU"),
        ("NVIDIA H100XM-1-10CME", "H100-VGPU-10GB", "H100-VGPU"),
        ("NVIDIA A10-24Q", "A10-VGPU-24GB", "A10-VGPU"),
        ("GRID M60-0B", "M60-VGPU-0GB", "M60-VGPU"),  # 512 MB
        ("GRID M60-1B4", "M60-VGPU-1GB", "M60-VGPU"),
        ("GeForce GTX P40-24", "P40-VGPU-24GB", "P40-VGPU"),
        ("NVIDIA RTX6000-Ada-48Q", "RTX-6000-ADA-VGPU-48GB", "RTX-6000-ADA-VGPU"),
        ("NVIDIA A10-4", "A10-VGPU-4GB", "A10-VGPU"),  # A10 has profiles without a series
    ],
)
def test_a_guests_vgpu_is_a_slice_of_a_model_of_its_own(name: str, product: str, model: str) -> None:
    assert named(name) == named(name, 1024) == (product, model)  # the size comes from the name


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-40", "NVIDIA A100-40X", "NVIDIA A100-4000C", "GRID A100-12-40C", "TESLA A100-40C", "GRID A999-40C"]
)
def test_what_only_resembles_a_profile_is_unknown(name: str) -> None:
    assert named(name) == (canonical(name), OTHER)


def test_every_board_reads_with_every_prefix_series_and_slice() -> None:
    for row in BOARDS:
        for prefix in ("", *(f"{one} " for one in DATA["vgpu"]["prefixes"])):
            for series in DATA["vgpu"]["series"]:
                for slices in ("", "2-"):
                    found = normalize_gpu_product(f"NVIDIA {prefix}{row['board']}-{slices}16{series}")
                    assert found is not None
                    assert (found.product, found.model) == (f"{row['model']}-VGPU-16GB", f"{row['model']}-VGPU")
                    assert found.host == row.get("host")
        bare = named(f"{row['board']}-16")
        assert bare == (
            (f"{row['model']}-VGPU-16GB", f"{row['model']}-VGPU") if row.get("bareProfiles") else (f"{row['board']}-16", OTHER)
        )


def test_normalizing_an_answer_again_changes_nothing() -> None:
    profiles = [f"{row['board']}-{size}C" for row in BOARDS for size in (0, 8, 141)]
    for name in [name for row in PRODUCTS for name in row["names"]] + profiles + ["Something New"]:
        first = named(name)
        assert first is not None
        assert named(first[0]) == first


# ---------------------------------------------------------------- the table


def test_the_table_is_whole() -> None:
    assert GPU_MODELS.version == DATA["version"] == 2
    assert len(GPU_MODELS.entries) == len(PRODUCTS) > 300
    assert set(GPU_MODELS.families) == {row["model"] for row in PRODUCTS}


def product(index: int = 0, **fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["products"][index].update(fields)


def board(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data["vgpu"]["boards"][0].update(fields)


def _twins(data: dict[str, Any]) -> None:
    line("H100-SXM5-94GB", data)["nvlink"] = "none"


def _two_architectures(data: dict[str, Any]) -> None:
    line("A100-PCIE-80GB", data)["architecture"] = "ada"


BROKEN: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda data: data.update(version="2"), "version '2' is no number"),
    (product(product="A10-PCIE-25GB"), "'A10-PCIE-25GB': it is not made of its model, form and one of its sizes"),
    (product(memoryGb="24"), "memoryGb '24'"),
    (product(memoryGb=[24, 12]), r"memoryGb \[24, 12\]"),
    (product(memoryGb=[24]), r"memoryGb \[24\]"),
    (product(model="a10", product="a10-PCIE-24GB"), "not MODEL-FORM-SIZEGB"),
    (product(form="VGPU", product="A10-VGPU-24GB"), "form 'VGPU' is none of a board"),
    (product(form="OAM", product="A10-OAM-24GB"), "form 'OAM' is none of a board"),
    (product(model="A11", product="A11-PCIE-24GB"), "model 'A11' is no family"),
    (product(architecture="Ampere"), "architecture 'Ampere' is none of"),
    (product(nvlink="wire"), "nvlink 'wire' is none of"),
    (product(migCapable="no"), "migCapable 'no' is neither"),
    (product(maxMigInstances=7), "maxMigInstances goes with migCapable true"),
    (product(names=["NVIDIA A10", "NVIDIA A010"]), "names are not sorted"),
    (product(names=[]), "it has no names"),
    (product(names=["NVIDIA"]), "name 'NVIDIA' is empty"),
    (product(names=["A10", "NVIDIA A10"]), "name 'NVIDIA A10' is .* another spelling of 'A10'"),
    (product(names=["Nvidia A100 PCIe 40GB", "Nvidia A100-PCIE-40GB"]), "another spelling"),
    (product(names=["A10-2Q"]), "A10-2Q also reads as a vGPU's profile"),
    (product(names=["H100-SXM5-64GB"]), "name 'H100-SXM5-64GB' is the product string of another line"),
    (product(pciDeviceIds=["2237", "2236"]), "pciDeviceIds are not sorted"),
    (product(pciDeviceIds=["22AB"]), "a PCI device id that is not four digits"),
    (product(colour="green"), "its fields are product, .*colour"),
    (lambda data: data["products"][0].pop("architecture"), "its fields are"),
    (lambda data: data["products"].reverse(), "products are not sorted"),
    (lambda data: data["products"].insert(0, copy.deepcopy(data["products"][0])), "products .* one is there twice"),
    (_twins, "both allow H100-SXM5-80GB and differ"),
    (lambda data: data["families"].update(A11={"line": "datacenter"}), "family 'A11': it has no product"),
    (lambda data: data["families"]["A10"].update(line="gaming"), "family 'A10': line 'gaming' is none of"),
    (_two_architectures, "family 'A100': its products have the architectures ada, ampere"),
    (board(host="A10-PCIE-25GB"), "board 'A10': host 'A10-PCIE-25GB' is no product"),
    (board(model="A11"), "board 'A10': model 'A11' is no product's"),
    (board(board="a10"), "board 'a10': it is no canonical form"),
    (board(hosts="A10-PCIE-24GB"), "board 'A10': its fields are"),
    (lambda data: data["vgpu"]["boards"].reverse(), "vgpu.boards are not sorted"),
    (lambda data: data["vgpu"]["series"].reverse(), "vgpu.series are not sorted"),
    (lambda data: data["vgpu"]["prefixes"].reverse(), "vgpu.prefixes are not sorted"),
]  # fmt: skip


@pytest.mark.parametrize(("breaks", "says"), BROKEN, ids=[says[:60] for _, says in BROKEN])
def test_a_table_that_breaks_a_rule_is_refused_by_its_entry(breaks: Callable[[dict[str, Any]], object], says: str) -> None:
    data = copy.deepcopy(DATA)
    breaks(data)
    with pytest.raises(ValueError, match=says) as refused:
        load(json.dumps(data))
    assert str(refused.value).startswith("gpu_models.json: ")


def test_a_product_is_at_most_a_labels_value() -> None:
    data = copy.deepcopy(DATA)
    row, model = data["products"][0], "A10" + "X" * 55
    row.update(model=model, product=f"{model}-PCIE-24GB")
    data["families"][model] = {"line": "datacenter"}
    with pytest.raises(ValueError, match="at most 63 characters"):
        load(json.dumps(data))


def test_a_key_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="key 'version' is there twice"):
        load(TEXT.replace('"version": 2,', '"version": 2, "version": 2,', 1))


@pytest.mark.parametrize("text", ["", TEXT[: len(TEXT) // 2], "[]", "{}"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^gpu_models.json: "):
        load(text)


def test_two_lines_share_a_product_string_only_where_they_agree() -> None:
    assert {line("H100-SXM5-80GB")["memoryGb"]} < set(line("H100-SXM5-94GB")["memoryGb"])
    found = normalize_gpu_product("H100-SXM5-80GB")
    assert found == GPU_MODELS.entries["H100-SXM5-80GB"].usual == normalize_gpu_product("NVIDIA H100", 81559)


def test_every_product_reads_from_the_right_as_memory_form_and_model() -> None:
    for row in PRODUCTS:
        match = re.fullmatch(r"(.+)-([A-Z0-9]+)-([0-9]+)GB", row["product"])
        assert match is not None
        assert (match[1], match[2]) == (row["model"], row["form"])
        assert int(match[3]) in sizes(row)
