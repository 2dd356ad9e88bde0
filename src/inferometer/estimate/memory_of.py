"""What a request needs of each device."""

from __future__ import annotations

from dataclasses import replace

from inferometer.estimate.memory import Memory, is_cpu, memory
from inferometer.estimate.request import Request


def memory_of(request: Request) -> Memory:
    """What the request needs of each device, without pricing its time."""
    asked = request.workload
    most = 1 if request.order == "row" else request.num_groups
    if most is not None and asked.group is not None:
        asked = replace(asked, batch=min(asked.batch, most * asked.group))
    if asked.group is not None and not request.stack.groups_apart:
        # One batch of all groups: in zigzag order also of their prompts, in diagonal order of one group's a sweep. Where weights come in
        # with every sweep so many enter together that there is little between the two.
        one_by_one = request.order == "diagonal" and not request.offload.weights
        staggered = -(-asked.batch // asked.group) if one_by_one and asked.generated > 1 else None
        together = asked.group if one_by_one else None
        if together is None and asked.generated == 1:
            together = asked.holding(request.stack.sweep_tokens)  # who has its one token is gone before the next sweep
        asked = replace(asked, staggered=staggered, group=together)
    return memory(request.spec, request.formats, request.stack, asked, cpu=is_cpu(request.device), layout=request.layout)
