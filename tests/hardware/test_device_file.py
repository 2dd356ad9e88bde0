"""A user's own TOML file stands wherever a slug does; what is wrong in it is named with the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferometer.errors import UserError
from inferometer.hardware.catalogue import catalogue, find_device
from inferometer.hardware.links import link_between

WHOLE = """
name = "Imaginary 1"
vendor = "Nobody"
architecture = "none"
memory_gib = 64
memory_bandwidth_gb_s = 2500
tensor_tflop_s = { float16 = 500, bfloat16 = 500 }
vector_tflop_s = { float32 = 50 }
multiprocessors = 100
links = [{ kind = "nvlink4", count = 4, topology = "switch", joins = 4 }, { kind = "pcie5", count = 8 }]
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


def test_a_whole_device(tmp_path: Path) -> None:
    device = find_device(write(tmp_path, WHOLE))
    assert device.slug == "mine"
    assert device.memory_bytes == 64 << 30
    assert device.usable_memory_bytes == 64 << 30
    assert device.memory_bandwidth_bytes_s == 2500e9
    assert device.matmul_flop_s("bfloat16") == 500e12
    assert device.power_limit_w is None
    assert device.source == "mine.toml"
    assert link_between(device, 4).bandwidth_bytes_s == 100e9
    assert link_between(device, 8).kind == "pcie5"
    assert link_between(device, 8).bandwidth_bytes_s == pytest.approx(31.508e9, rel=1e-4)


def test_a_base_gives_what_the_file_leaves_out(tmp_path: Path) -> None:
    base = catalogue()["h100-sxm"]
    device = find_device(write(tmp_path, 'slug = "fat"\nbase = "h100-sxm"\nmemory_bandwidth_gb_s = 6700\nmemory_gib = 160\n'))
    assert device.slug == "fat"
    assert device.memory_bandwidth_bytes_s == 6700e9
    assert device.memory_bytes == device.usable_memory_bytes == 160 << 30
    assert device.tensor == base.tensor
    assert device.ports == base.ports
    assert device.driver_names == ()
    assert "mine.toml" in device.source
    assert "memory_bandwidth_gb_s" not in dict(device.sources)


def test_a_base_may_be_given_other_rates(tmp_path: Path) -> None:
    text = 'base = "h100-sxm"\ntensor_tflop_s = { float16 = 2000 }\n'
    assert find_device(write(tmp_path, text)).tensor.known() == {"float16": 2000e12}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WHOLE.replace("memory_gib = 64", ""), "memory_gib is missing"),
        (WHOLE.replace("memory_gib = 64", "memory_gib = -1"), "memory_gib must be a positive number, not -1"),
        (WHOLE.replace("memory_gib = 64", "memory_gib = true"), "memory_gib must be a positive number"),
        (WHOLE.replace("memory_gib = 64", "memory_gib = inf"), "memory_gib must be a positive number"),
        (WHOLE.replace("memory_gib = 64", "memory_gb = 64\nmemory_gib = 64"), "unknown key 'memory_gb'"),
        (WHOLE.replace("multiprocessors = 100", "multiprocessors = 1.5"), "multiprocessors must be a positive whole number"),
        (WHOLE.replace('"Nobody"', "3"), "vendor must be a string"),
        (WHOLE.replace("bfloat16 = 500 }", 'bfloat16 = "fast" }'), "tensor_tflop_s: bfloat16 must be a positive number"),
        (WHOLE.replace("bfloat16 = 500 }", "bf16 = 500 }"), "tensor_tflop_s: unknown key 'bf16'"),
        (WHOLE.replace("{ float32 = 50 }", "{ float16 = 50 }"), "vector_tflop_s: float32 is missing"),
        (WHOLE.replace("{ float32 = 50 }", "50"), "vector_tflop_s must be a table"),
        (WHOLE.replace('"nvlink4"', '"nvlink9"'), r"links\[0\]: kind 'nvlink9' is unknown; one of nvlink2"),
        (WHOLE.replace('topology = "switch", ', ""), r"links\[0\]: topology is missing"),
        (WHOLE.replace('"switch"', '"ring"'), r"links\[0\]: topology must be one of switch"),
        (WHOLE.replace("joins = 4", "joins = 1"), r"links\[0\]: links: nvlink4 joins 1 devices"),
        (WHOLE + "tensor_sparse_tflop_s = { float16 = 500 }\n", "sparse is twice dense"),
        (WHOLE + 'sources = { colour = "brochure" }\n', "sources: colour is no key of this device"),
        ('base = "h101"\n', "base: h101: no such device; did you mean "),
        ("base = 3\n", "base must be a device's slug"),
        ("slug = 3\n", "slug must be a string"),
        ("name = \n", "not a TOML file"),
        ("name = " + "[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=message) as raised:
        find_device(path)
    assert str(raised.value).startswith(path)
    assert "\n" not in str(raised.value)


def test_a_mark_of_byte_order_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_text(WHOLE, encoding="utf-8-sig")
    (tmp_path / "plain.toml").write_text(WHOLE)
    marked, plain = (find_device(str(tmp_path / name)) for name in ("marked.toml", "plain.toml"))
    assert (marked.name, marked.vector) == (plain.name, plain.vector)


def test_a_name_that_no_file_has() -> None:
    with pytest.raises(UserError, match="null") as raised:
        find_device("a\x00\nb.toml")
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.toml: cannot be read"):
        find_device(str(tmp_path / "absent.toml"))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a TOML file"):
        find_device(str(binary))
