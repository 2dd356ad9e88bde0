"""The limits that a bound is computed against: the device's measured ceilings if it is calibrated, else its datasheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inferometer.hardware.calibration import Calibration
from inferometer.hardware.device import DTYPES, DeviceSpec, Dtype

Basis = Literal["calibration", "datasheet", "calibration, datasheet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Bytes/s and FLOP/s that a device reaches at most. None or absent: unknown, never guessed.

    library_flop_s, own_flop_s: matrix products by the matrix library and by this program's own kernels, as far as measured; `matmul_flop_s`
    is the faster. `basis` says where they are from; `calibration, datasheet` where some types were not measured and the datasheet's rate
    stands in.
    """

    memory_bandwidth_bytes_s: float | None
    matmul_flop_s: Mapping[Dtype, float]
    vector_flop_s: Mapping[Dtype, float]
    library_flop_s: Mapping[Dtype, float] = field(default_factory=dict)
    own_flop_s: Mapping[Dtype, float] = field(default_factory=dict)
    launch_s: float | None
    basis: Basis


def ceilings(device: DeviceSpec, calibration: Calibration | None = None) -> Ceilings:
    """The ceilings of `device`; `calibration` must have been taken on such a device.

    Raises ValueError if the calibration is of another device.
    """
    matmul = {dtype: rate for dtype in DTYPES if (rate := device.matmul_flop_s(dtype)) is not None}
    vector = device.vector.known()
    if calibration is None:
        return Ceilings(
            memory_bandwidth_bytes_s=device.memory_bandwidth_bytes_s,
            matmul_flop_s=matmul,
            vector_flop_s=vector,
            launch_s=None,
            basis="datasheet",
        )
    if calibration.slug != device.slug:
        raise ValueError(f"the calibration is of {calibration.slug}, not of {device.slug}")
    library, own = calibration.matmul_flop_s, calibration.own_matmul_flop_s
    measured = {dtype: max(library.get(dtype, 0.0), own.get(dtype, 0.0)) for dtype in {**library, **own}}
    lacking = set(matmul) - set(measured)
    return Ceilings(
        memory_bandwidth_bytes_s=calibration.bandwidth_bytes_s,
        matmul_flop_s={**matmul, **measured},
        vector_flop_s=vector,
        library_flop_s=library,
        own_flop_s=own,
        launch_s=calibration.launch_s,
        basis="calibration, datasheet" if lacking else "calibration",
    )
