"""What it costs rank 0 to tell the others of a step, by transport: a Unix socket, TCP on the loopback, shared memory, gloo's broadcast.

    python benchmarks/rank_broadcast.py [--followers 1 3 7] [--steps 5000]

For each transport: microseconds of rank 0's thread a step (it tells and goes on), and until the last follower has read it and said so.
A step is 40 bytes. Followers of sockets sleep in recv; those of shared memory look at it again and again, which takes a core each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import Barrier
from typing import Any

STEP = b"x" * 40


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--followers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--no-gloo", action="store_true")
    arguments = parser.parse_args()
    transports: dict[str, Callable[[int, int], tuple[float, float]]] = {"unix socket": unix, "tcp": tcp, "shared memory": shared}
    if not arguments.no_gloo:
        transports["gloo broadcast"] = gloo
    print("| transport | followers | tell, us | told and answered, us |\n|---|---|---|---|")
    for name, measure in transports.items():
        for followers in arguments.followers:
            tell, trip = measure(followers, arguments.steps)
            print(f"| {name} | {followers} | {tell:.1f} | {trip:.1f} |", flush=True)


def unix(followers: int, steps: int) -> tuple[float, float]:
    """Over socket pairs."""
    pairs = [socket.socketpair() for _ in range(followers)]
    return _over_sockets([pair[0] for pair in pairs], [pair[1] for pair in pairs], steps)


def tcp(followers: int, steps: int) -> tuple[float, float]:
    """Over the loopback, without delay."""
    listener = socket.create_server(("127.0.0.1", 0))
    near, far = [], []
    for _ in range(followers):
        far.append(socket.create_connection(listener.getsockname()))
        near.append(listener.accept()[0])
    for end in (*near, *far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _over_sockets(near, far, steps)


def _over_sockets(near: list[socket.socket], far: list[socket.socket], steps: int) -> tuple[float, float]:
    processes = []
    for end in far:
        pid = os.fork()
        if pid == 0:
            while data := end.recv(1 << 16):
                if data.endswith(b"!"):
                    end.sendall(b".")
            os._exit(0)
        processes.append(pid)
        end.close()
    tells, trips = [], []
    for _ in range(steps):
        start = time.perf_counter()
        for end in near:
            end.sendall(STEP)
        tells.append(time.perf_counter() - start)
        time.sleep(0.0002)  # a step's other work, in which followers get to it
    for _ in range(steps):
        start = time.perf_counter()
        for end in near:
            end.sendall(STEP + b"!")
        for end in near:
            end.recv(1)
        trips.append(time.perf_counter() - start)
    for end in near:
        end.shutdown(socket.SHUT_RDWR)
        end.close()
    for pid in processes:
        os.waitpid(pid, 0)
    return statistics.median(tells) * 1e6, statistics.median(trips) * 1e6


def shared(followers: int, steps: int) -> tuple[float, float]:
    """A counter that followers look at."""
    memory = SharedMemory(create=True, size=4096)
    try:
        processes = []
        for place in range(followers):
            pid = os.fork()
            if pid == 0:
                _watch(memory, place, 2 * steps)
                os._exit(0)
            processes.append(pid)
        tells, trips = [], []
        for step in range(1, steps + 1):
            start = time.perf_counter()
            memory.buf[8:48] = STEP
            struct.pack_into("Q", memory.buf, 0, step)
            tells.append(time.perf_counter() - start)
            _answered(memory, followers, step)
        for step in range(steps + 1, 2 * steps + 1):
            start = time.perf_counter()
            struct.pack_into("Q", memory.buf, 0, step)
            _answered(memory, followers, step)
            trips.append(time.perf_counter() - start)
        for pid in processes:
            os.waitpid(pid, 0)
    finally:
        memory.close()
        memory.unlink()
    return statistics.median(tells) * 1e6, statistics.median(trips) * 1e6


def _watch(memory: SharedMemory, place: int, last: int) -> None:
    seen = 0
    while seen < last:
        (now,) = struct.unpack_from("Q", memory.buf, 0)
        if now != seen:
            seen = now
            struct.pack_into("Q", memory.buf, 64 * (place + 1), seen)
        else:
            os.sched_yield()


def _answered(memory: SharedMemory, followers: int, step: int) -> None:
    while any(struct.unpack_from("Q", memory.buf, 64 * (place + 1))[0] < step for place in range(followers)):
        os.sched_yield()


def gloo(followers: int, steps: int) -> tuple[float, float]:
    """torch.distributed's broadcast of a tensor as large as a step, and the barrier of the answer."""
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    gate = context.Barrier(followers + 1)
    port = _free_port()
    processes = [context.Process(target=_gloo_rank, args=(rank, followers + 1, port, steps, found, gate)) for rank in range(followers + 1)]
    for process in processes:
        process.start()
    tell, trip = found.get(timeout=120)
    for process in processes:
        process.join()
    return tell, trip


def _gloo_rank(rank: int, size: int, port: int, steps: int, found: Any, gate: Barrier) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    tensor = torch.zeros(len(STEP), dtype=torch.uint8)
    answer = torch.zeros(1)
    tells, trips = [], []
    for _ in range(steps // 5):
        start = time.perf_counter()
        dist.broadcast(tensor, 0)
        tells.append(time.perf_counter() - start)
        dist.all_reduce(answer)
        trips.append(time.perf_counter() - start)
    gate.wait()
    if rank == 0:
        found.put((statistics.median(tells) * 1e6, statistics.median(trips) * 1e6))
    dist.destroy_process_group()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


if __name__ == "__main__":
    main()
