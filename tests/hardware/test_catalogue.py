"""Every device of the design is there, and its figures agree with how such chips are built, not only with themselves."""

from __future__ import annotations

import dataclasses

import pytest

from inferometer.errors import UserError
from inferometer.hardware.catalogue import catalogue, find_device, match_driver_name, slugs
from inferometer.hardware.device import DTYPES, DeviceSpec, Port, Rates

SLUGS = [
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a100-pcie-40gb",
    "a100-pcie-80gb",
    "h100-sxm",
    "h100-pcie",
    "h200",
    "b200",
    "v100-sxm-32gb",
    "t4",
    "l4",
    "l40s",
    "a10g",
    "a30",
    "a40",
    "rtx-a5000",
    "rtx-a6000",
    "rtx-4000-ada",
    "rtx-5000-ada",
    "rtx-6000-ada",
    "rtx-2080-ti",
    "rtx-3080",
    "rtx-3090",
    "rtx-4080",
    "rtx-4090",
    "rtx-5090",
    "mi250x",
    "mi300x",
]

# Operations that one multiprocessor (compute unit) finishes in one clock: float16 tensor with a float32 accumulator, float32 vector.
PER_CLOCK = {
    "v100-sxm-32gb": (1024, 128),
    "t4": (1024, 128),
    "rtx-2080-ti": (512, 128),
    **dict.fromkeys(["a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb", "a30"], (2048, 128)),
    **dict.fromkeys(["a40", "rtx-a5000", "rtx-a6000"], (1024, 256)),
    **dict.fromkeys(["a10g", "rtx-3080", "rtx-3090", "rtx-4080", "rtx-4090", "rtx-5090"], (512, 256)),
    **dict.fromkeys(["l4", "l40s", "rtx-4000-ada", "rtx-5000-ada", "rtx-6000-ada"], (1024, 256)),
    **dict.fromkeys(["h100-sxm", "h100-pcie", "h200"], (4096, 256)),
    "mi250x": (1024, 128),
    "mi300x": (2048, 256),
}

# bytes, bytes/s, FLOP/s in float16, watts: read from the vendors' pages once more, apart from the catalogue.
PUBLISHED = {
    "a100-sxm-40gb": (40, 1555, 312, 400),
    "a100-sxm-80gb": (80, 2039, 312, 400),
    "h100-sxm": (80, 3350, 989, 700),
    "h100-pcie": (80, 2000, 756, 350),
    "h200": (141, 4800, 989, 700),
    "b200": (180, 8000, 2250, 1000),
    "t4": (16, 320, 65, 70),
    "l40s": (48, 864, 362, 350),
    "a10g": (24, 600, 70, 300),
    "rtx-a5000": (24, 768, 111.1, 230),
    "rtx-a6000": (48, 768, 154.8, 300),
    "rtx-4090": (24, 1008, 165.2, 450),
    "rtx-3090": (24, 936, 71, 350),
    "rtx-2080-ti": (11, 616, 53.8, 250),
    "mi300x": (192, 5300, 1307, 750),
}

devices = pytest.mark.parametrize("slug", SLUGS)


def test_the_catalogue_holds_the_devices_of_the_design_and_this_machine() -> None:
    assert set(catalogue()) == set(SLUGS)
    assert slugs() == (*catalogue(), "cpu")


@devices
def test_a_slug_finds_its_device(slug: str) -> None:
    assert find_device(slug) == catalogue()[slug]
    assert find_device(slug).slug == slug


@devices
def test_every_device_has_the_figures_that_a_bound_needs(slug: str) -> None:
    device = catalogue()[slug]
    assert device.memory_bandwidth_bytes_s is not None
    assert device.matmul_flop_s("float16") is not None
    assert device.matmul_flop_s("float32") is not None
    assert device.power_limit_w is not None
    assert device.l2_bytes is not None
    assert device.driver_names
    assert any(port.topology == "host" for port in device.ports)
    assert device.usable_memory_bytes <= device.memory_bytes
    assert device.usable_memory_bytes / device.memory_bytes >= 0.93


@devices
def test_every_figure_has_a_datasheet(slug: str) -> None:
    device = catalogue()[slug]
    assert device.source
    assert all(dict(device.sources).values())
    assert dict(device.sources)["visible_memory_mib"] != device.source


@pytest.mark.parametrize("slug", PER_CLOCK)
def test_rates_follow_from_multiprocessors_and_clock(slug: str) -> None:
    device = catalogue()[slug]
    tensor, vector = PER_CLOCK[slug]
    assert device.boost_clock_hz is not None
    tensor_clock = device.tensor_clock_hz or device.boost_clock_hz
    assert device.tensor.float16 == pytest.approx(device.multiprocessors * tensor * tensor_clock, rel=0.015)
    assert device.vector.float32 == pytest.approx(device.multiprocessors * vector * device.boost_clock_hz, rel=0.015)


def test_every_device_but_the_one_without_a_published_tensor_clock_is_derived() -> None:
    assert set(SLUGS) - set(PER_CLOCK) == {"b200"}


@devices
def test_narrower_types_are_faster_by_the_usual_factors(slug: str) -> None:
    tensor = catalogue()[slug].tensor
    assert tensor.float16 is not None
    for dtype, factors in {"tf32": {0.5}, "bfloat16": {1}, "fp8": {2}, "int8": {1, 2, 4}}.items():
        rate = tensor.of(dtype)  # type: ignore[arg-type]
        if rate is not None:
            assert any(rate / tensor.float16 == pytest.approx(factor, rel=0.02) for factor in factors), dtype


@pytest.mark.parametrize("slug", PUBLISHED)
def test_published_figures(slug: str) -> None:
    device = catalogue()[slug]
    memory_gib, bandwidth, float16, power = PUBLISHED[slug]
    assert device.memory_bytes == memory_gib << 30
    assert device.memory_bandwidth_bytes_s == bandwidth * 1e9
    assert device.matmul_flop_s("float16") == pytest.approx(float16 * 1e12, rel=1e-3)
    assert device.power_limit_w == power


def test_geforce_cards_halve_the_rate_with_a_float32_accumulator() -> None:
    for slug in ("rtx-2080-ti", "rtx-3080", "rtx-3090", "rtx-4080", "rtx-4090", "rtx-5090"):
        device = catalogue()[slug]
        assert device.tensor_half_accumulate.float16 == pytest.approx(2 * (device.tensor.float16 or 0), rel=0.005)
        assert device.matmul_flop_s("float16") == device.tensor.float16


def test_float32_products_never_take_the_rate_of_tf32() -> None:
    for device in catalogue().values():
        rates = {device.vector.float32, device.tensor.float32}
        assert device.matmul_flop_s("float32") in rates
    assert catalogue()["h100-sxm"].matmul_flop_s("float32") == 66.9e12
    assert catalogue()["mi250x"].matmul_flop_s("float32") == 95.7e12


def test_types_that_a_card_lacks_are_none() -> None:
    assert catalogue()["t4"].matmul_flop_s("bfloat16") is None
    assert catalogue()["a100-sxm-80gb"].matmul_flop_s("fp8") is None
    assert catalogue()["v100-sxm-32gb"].matmul_flop_s("int8") is None
    assert catalogue()["t4"].vector_flop_s("bfloat16") == 8.1e12


@pytest.mark.parametrize(
    ("name", "memory_gib", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "h100-sxm"),
        ("NVIDIA H100 PCIe", 79.6, "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", 79.3, "a100-pcie-80gb"),
        ("Tesla T4", 14.75, "t4"),
        ("Tesla V100-SXM2-32GB", 31.7, "v100-sxm-32gb"),
        ("nvidia  rtx a5000", 23.7, "rtx-a5000"),
        ("NVIDIA GeForce RTX 3080", 9.8, "rtx-3080"),
        ("NVIDIA GeForce RTX 3080", 12.0, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16.0, None),
        ("NVIDIA H100 NVL", 94.0, None),
        ("AMD Instinct MI250X", 63.98, "mi250x"),
        ("NVIDIA L4", None, "l4"),
        ("", None, None),
    ],
)
def test_driver_names_find_the_card(name: str, memory_gib: float | None, slug: str | None) -> None:
    assert match_driver_name(name, None if memory_gib is None else round(memory_gib * 2**30)) == slug


def test_each_driver_name_belongs_to_one_card() -> None:
    names = [name.casefold() for device in catalogue().values() for name in device.driver_names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["l4", "L4", "NVIDIA L4", "nvidia  l4"])
def test_a_card_is_found_as_people_write_it(name: str) -> None:
    assert find_device(name) == catalogue()["l4"]


def test_an_unknown_slug_names_the_nearest() -> None:
    with pytest.raises(UserError, match="h100_sxm: no such device; did you mean h100-sxm") as raised:
        find_device("h100_sxm")
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="did you mean h100-sxm or h100-pcie"):
        find_device("H100")
    with pytest.raises(UserError, match="qqq: no such device; `inferometer devices` lists them"):
        find_device("qqq")


def test_rates_and_specs_refuse_the_impossible() -> None:
    good = catalogue()["h100-sxm"]
    with pytest.raises(ValueError, match="float16: a rate is positive"):
        Rates(float16=0.0)
    with pytest.raises(ValueError, match="sparse is twice dense"):
        dataclasses.replace(good, tensor=dataclasses.replace(good.tensor, float16=1978.9e12))
    with pytest.raises(ValueError, match="memory_bytes is positive"):
        dataclasses.replace(good, memory_bytes=0, visible_memory_bytes=None)
    with pytest.raises(ValueError, match="visible_memory_bytes is at most"):
        dataclasses.replace(good, visible_memory_bytes=good.memory_bytes + 1)
    with pytest.raises(ValueError, match="l2_bytes"):
        dataclasses.replace(good, l2_bytes=good.memory_bytes)
    with pytest.raises(ValueError, match="tensor_clock_hz"):
        dataclasses.replace(good, tensor_clock_hz=3e9)
    with pytest.raises(ValueError, match="tensor_half_accumulate: float16"):
        dataclasses.replace(good, tensor_half_accumulate=Rates(float16=1e12), tensor_sparse=Rates())
    with pytest.raises(ValueError, match="each kind once"):
        dataclasses.replace(good, ports=(good.ports[0], good.ports[0]))
    with pytest.raises(ValueError, match="joins 1"):
        Port(kind="pcie4", count=16, bandwidth_bytes_s=1.0, topology="host", joins=1)


@devices
def test_json_has_every_field_and_no_null_rates(slug: str) -> None:
    device = catalogue()[slug]
    document = device.to_json()
    assert set(document) == {field.name for field in dataclasses.fields(DeviceSpec)}
    assert document["tensor"] == {dtype: device.tensor.of(dtype) for dtype in DTYPES if device.tensor.of(dtype) is not None}
