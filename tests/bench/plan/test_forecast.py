"""What is expected of a case: its times, its memory, and whether it fits."""

from __future__ import annotations

from dataclasses import replace

from fake_worker import GIB, HERE, asked

from inferometer.bench.plan.forecast import Forecast, forecast


def test_what_a_forecast_says_of_fitting() -> None:
    assert Forecast().expected == "ok"
    assert Forecast(peak_bytes=3 * GIB, least_bytes=2 * GIB, capacity_bytes=4 * GIB).expected == "ok"
    likely = Forecast(peak_bytes=5 * GIB, least_bytes=2 * GIB, capacity_bytes=4 * GIB)
    assert (likely.expected, likely.impossible) == ("oom", None)
    assert likely.too_much == "5.0 GiB are expected to be needed, and 4.0 GiB are there"
    surely = Forecast(peak_bytes=9 * GIB, least_bytes=8 * GIB, capacity_bytes=4 * GIB)
    assert surely.impossible == "weights and KV cache alone need 8.0 GiB, and 4.0 GiB are there"


def test_a_forecast_of_a_case() -> None:
    (question,) = asked("sequence_length = 100\ndecode_length = 20")
    found = forecast(question)
    assert found.run_s is not None
    assert found.seconds is not None
    assert 0.1 < found.run_s < 10
    runs = question.request.runs + question.request.warmups
    # The check runs few of the steps, and energy each phase for two seconds.
    assert found.run_s * runs < found.seconds - 2 * 2.0 < found.run_s * (runs + 4)
    (long,) = asked("sequence_length = 100\ndecode_length = 400\nenergy = false")
    longer = forecast(long)
    assert longer.run_s is not None
    assert longer.seconds is not None
    assert longer.run_s * runs < longer.seconds < longer.run_s * (runs + 0.3)
    assert found.peak_bytes is not None
    assert found.least_bytes is not None
    assert 2 * 1.3e9 < found.least_bytes < found.peak_bytes < found.capacity_bytes  # type: ignore[operator]
    assert 240 < found.time_limit_s < 1000
    (capped,) = asked("sequence_length = 100\ngpu_memory = 2")
    assert forecast(capped).impossible is not None


def test_of_groups_that_may_take_turns_only_weights_are_certain() -> None:
    (whole,), (groups,) = asked("sequence_length = 500"), asked("sequence_length = 500\nadmission = 'diagonal'")
    assert forecast(groups).least_bytes == forecast(groups).weight_bytes
    assert forecast(whole).least_bytes > forecast(groups).least_bytes  # type: ignore[operator]


def test_groups_that_are_not_in_flight_hold_no_memory() -> None:
    zigzag = "batch_size = 64\nadmission = 'zigzag'\ngroup_size = 8"
    of_all, of_one, of_batch = (
        forecast(asked("sequence_length = 500", columns=f'[[part.columns]]\nname = "one"\nbackend = "native"\n{what}\n')[0])
        for what in (zigzag, f"{zigzag}\nnum_groups = 1", "batch_size = 8")
    )
    one, batch, everything = (each.peak_bytes or 0 for each in (of_one, of_batch, of_all))
    assert 0 < one == batch < everything
    assert (of_one.run_s or 0) > (of_all.run_s or 0) > 0


def test_nothing_is_known_of_an_unknown_card_or_stack() -> None:
    (question,) = asked(where=replace(HERE, slug=None, spec=None))
    assert forecast(question) == Forecast(capacity_bytes=HERE.memory_bytes)
    assert forecast(question).time_limit_s == 900


def test_a_format_is_forecast_as_what_the_stack_makes_of_it() -> None:
    found = []
    for name in ("int8", "bitsandbytes"):
        (question,) = asked("sequence_length = 8", columns=f'[[part.columns]]\nname = "one"\nbackend = "hf"\nquantize = "{name}"\n')
        found.append(forecast(question).run_s)
    assert found[0] is not None
    assert found[0] == found[1]
