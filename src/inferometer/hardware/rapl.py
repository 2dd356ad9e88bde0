"""The CPU's energy counters (Intel's RAPL, which AMD has too), from the kernel's powercap tree."""

from __future__ import annotations

from pathlib import Path

from inferometer.hardware.reading import Reading

POWERCAP = Path("/sys/class/powercap")


class Rapl:
    """Joules of all CPU packages since this object was made. The counters wrap around; read at least once a minute or two."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._total_uj = 0
        self._zones: dict[Path, tuple[int, int | None]] = {}
        self._reason: str | None = None
        try:
            candidates = sorted(folder.glob("intel-rapl:*"))
        except OSError:
            candidates = []
        for zone in candidates:
            # `intel-rapl:0` is a package; `intel-rapl:0:0` a part of it, counted in the package already.
            if zone.name.count(":") != 1 or not _read(zone / "name").startswith("package"):
                continue
            counter = _read(zone / "energy_uj")
            if not counter.isdigit():
                self._reason = f"{zone.name}: the energy counter is not readable (root alone may, by default)"
                continue
            limit = _read(zone / "max_energy_range_uj")
            self._zones[zone] = (int(counter), int(limit) if limit.isdigit() else None)
        if not self._zones and self._reason is None:
            self._reason = f"no RAPL counters under {folder}"

    def read(self) -> Reading[float]:
        """Joules so far, over the packages; None with the reason if one of them cannot be read."""
        if self._reason is not None:
            return Reading(None, "J", self._reason)
        for zone, (last, limit) in self._zones.items():
            text = _read(zone / "energy_uj")
            if not text.isdigit():
                return Reading(None, "J", f"{zone.name}: the energy counter is not readable any more")
            now = int(text)
            if now < last and limit is None:
                return Reading(None, "J", f"{zone.name}: the energy counter wrapped and its range is unknown")
            self._total_uj += now - last if now >= last else now + (limit or 0) - last
            self._zones[zone] = (now, limit)
        return Reading(self._total_uj / 1e6, "J")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""
