"""What a run of groups stands beside: pages and bytes by formula, the least that link and device leave, and the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from host_link import LinkRates
from offload_jobs import Job

Sweeps = Sequence[Sequence[tuple[int, int]]]
"""Of every sweep and share: new tokens, and tokens before them."""


def formula_pages(job: Job, order: str, page_size: int) -> int:
    """The most pages that are held at once, of a job whose groups are all in flight together: in zigzag order they all grow to their
    limits together, in diagonal order each is a token behind the group before it."""
    assert job.num_groups is not None
    assert job.num_groups * job.group_size == job.requests
    last = job.prompts + job.new - 1  # the last token is never run
    if order == "zigzag":
        return job.requests * -(-last // page_size)
    held = [-(-tokens // page_size) for tokens in range(job.prompts, last + 1)]  # by sweeps since it entered
    return job.group_size * max(
        sum(held[sweep - group] for group in range(job.num_groups) if 0 <= sweep - group < job.new)
        for sweep in range(job.num_groups + job.new)
    )


def formula_bytes(llm: Any, sweeps: Sweeps, at_rest: int, pages: int) -> int:
    """What is there at rest (weights, inputs of graphs, workspaces), the pages, and what passes through a layer of the longest sweep."""
    from inferometer.estimate.memory import Workload, activation_bytes
    from inferometer.estimate.stack import find_stack
    from inferometer.model.formats import Formats

    tokens = max(sum(count for count, _ in shares) for shares in sweeps)
    passing = activation_bytes(llm.spec, Formats(dtype="bfloat16"), find_stack("native"), Workload(batch=1, length=tokens))
    return at_rest + pages + passing


def least_seconds(llm: Any, sweeps: Sweeps, link: LinkRates, calibration: Any) -> tuple[float, float]:
    """Seconds in which the sweeps that ran could have: each waits for the slower of link and device; and those of the link alone."""
    from inferometer.estimate.bound import bound
    from inferometer.estimate.limits import limits
    from inferometer.hardware.catalogue import find_device
    from inferometer.model.formats import Formats, kv_bytes_per_token
    from inferometer.model.step import decode, mixed
    from inferometer.model.work import work

    formats = Formats(dtype="bfloat16")
    ceilings = limits(find_device(calibration.slug), calibration)
    placement = getattr(llm.model.residency, "placement", None)
    weights = 0 if placement is None else placement.streamed_bytes
    offload = llm._storage.offload
    token_bytes = offload.pages * kv_bytes_per_token(llm.spec, formats)
    total = coming = 0.0
    for shares in sweeps:
        prompts = [(count, start) for count, start in shares if count > 1 or start == 0]
        contexts = [start + 1 for count, start in shares if count == 1 and start]
        device = bound(work(llm.spec, mixed(prompts, contexts) if prompts else decode(contexts), formats), ceilings).ms / 1e3
        comes = weights + token_bytes * sum(start for _, start in shares)
        goes = token_bytes * sum(count for count, _ in shares)
        carried = max(comes / link.bytes_in_s, goes / link.bytes_out_s, (comes + goes) / link.bytes_both_s)
        total += max(device, carried)
        coming += carried
    return total, coming


def expected_tok_s(llm: Any, job: Job, order: str, calibration: Any) -> float | None:
    """The estimator's tokens/s: of as many requests at a time as there are pages for."""
    from inferometer.errors import UserError
    from inferometer.estimate import estimate

    each = -(-(job.prompts + job.new - 1) // llm.engine.page_size)
    room = max(1, llm.engine.pages // each // job.group_size)
    groups = min(room, job.num_groups or -(-job.requests // job.group_size))
    blocks = -(-job.requests // (groups * job.group_size)) if order == "zigzag" else 1
    asked = {"batch_size": min(job.requests, groups * job.group_size) if blocks > 1 else job.requests, "num_groups": groups}
    try:
        found = estimate(
            llm.description, calibration.slug, sequence_length=job.prompts, decode_length=job.new, dtype="bfloat16", admission=order,
            group_size=job.group_size, offload=llm._storage.offload.name, calibration=calibration, **asked,
        )  # fmt: skip
    except UserError:
        return None
    return None if found.total_ms is None else job.requests * job.new / (blocks * found.total_ms / 1e3)
