import pytest

from agent.collectors.cmdline import arguments, hugepages, shown

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "BOOT_IMAGE=/vmlinuz-5.15.0 root=UUID=3b2c ro quiet\n",
            [("BOOT_IMAGE", "/vmlinuz-5.15.0"), ("root", "UUID=3b2c"), ("ro", None), ("quiet", None)],
        ),
        ('dyndbg="file drivers/usb/* +p" quiet', [("dyndbg", "file drivers/usb/* +p"), ("quiet", None)]),
        ('"dyndbg=file a +p" quiet', [("dyndbg", "file a +p"), ("quiet", None)]),
        ("key='two words' quiet", [("key", "'two words'"), ("quiet", None)]),
        ("a=don't b=1", [("a", "don't"), ("b", "1")]),
        ('a="never closed b=1', [("a", "never closed b=1")]),
        ("quiet -- --password hunter2", [("quiet", None)]),
        ("a= b", [("a", ""), ("b", None)]),
        ("", []),
    ],
)
def test_arguments(text: str, expected: list[tuple[str, str | None]]) -> None:
    assert arguments(text) == expected


@pytest.mark.parametrize(
    "argument",
    [
        ("hugepages", "16"),
        ("hugepagesz", "1G"),
        ("default_hugepagesz", "1G"),
        ("isolcpus", "2-47"),
        ("nohz_full", "2-47"),
        ("intel_iommu", "on"),
        ("intel-iommu", "on"),
        ("amd_iommu", "on"),
        ("iommu", "pt"),
        ("pci", "realloc=off"),
        ("psi", "1"),
        ("mitigations", "off"),
        ("crashkernel", "512M"),
        ("transparent_hugepage", "never"),
        ("nvidia.NVreg_EnableGpuFirmware", "1"),
        ("nvidia-drm.modeset", "1"),
        ("nvidia_uvm.uvm_disable_hmm", "1"),
    ],
)
def test_values_of_the_allow_list_are_shown(argument: tuple[str, str]) -> None:
    assert shown(argument) == argument


@pytest.mark.parametrize(
    "name",
    ["systemd.set_credential", "rd.luks.key", "root", "ip", "pcie_aspm", "psi2", "iommu.strict", "not_nvidia", "BOOT_IMAGE"],
)
def test_other_values_are_not_shown(name: str) -> None:
    assert shown((name, "hunter2")) == (name, None)


@pytest.mark.parametrize("name", ["https://user:hunter2@host/x", "hunter2'", "", "a b", "x" * 101, "päss"])
def test_word_that_is_no_parameters_name_is_not_shown(name: str) -> None:
    assert shown((name, None)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hugepagesz=1G hugepages=16", {GIB: 16}),
        ("hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=512", {GIB: 16, 2 * MIB: 512}),
        ("hugepages=64", {None: 64}),
        ("default_hugepagesz=1G hugepages=8", {GIB: 8}),
        ("hugepages=8 default_hugepagesz=1G", {GIB: 8}),
        ("default_hugepagesz=1G hugepagesz=2M hugepages=4", {2 * MIB: 4}),
        ("hugepagesz=1G hugepages=0:8,1:8", {GIB: 16}),
        ("hugepagesz=2M hugepages=1 hugepages=2", {2 * MIB: 1}),
        ("hugepagesz=bogus hugepages=4", {}),
        ("hugepagesz=1G hugepages=0", {}),
        ("hugepagesz=1G hugepages=x", {}),
        ("hugepagesz=1G hugepages", {}),
        ("hugepagesz=1G", {}),
        ("quiet", {}),
    ],
)
def test_hugepages_reserved_on_the_line(text: str, expected: dict[int | None, int]) -> None:
    assert hugepages(arguments(text)) == expected
