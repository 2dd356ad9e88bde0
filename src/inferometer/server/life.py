"""A server's life: from settings to an exit code, with nothing left behind."""

from __future__ import annotations

import errno
import logging
import os
import socket
from dataclasses import replace
from importlib.util import find_spec

from inferometer.errors import UserError
from inferometer.server.child import Child
from inferometer.server.flags import pointless
from inferometer.server.last_signal import hear_no_more
from inferometer.server.log import set_up_logging
from inferometer.server.messages import Begin
from inferometer.server.served_model import find_model
from inferometer.server.settings import ServerSettings
from inferometer.server.shards import shard_count

LOG = logging.getLogger(__name__)

_PACKAGES = ("fastapi", "uvicorn", "httptools", "prometheus_client", "opentelemetry")
"""What `front.py` imports."""


def serve(settings: ServerSettings) -> int:
    """Serves until a signal ends it. The exit code: 0 after a signal, 1 if the engine had died by then.

    Raises UserError for whatever keeps it from starting, StartError where the engine failed for another reason, LostError where a model
    of several shards has lost one, ModuleNotFoundError without a package that it needs.
    """
    log = set_up_logging(as_json=settings.json_output)
    _look_for_packages()
    listener = _bind(settings)
    with listener:
        if settings.huggingface_hub_cache is not None:
            os.environ["HF_HUB_CACHE"] = settings.huggingface_hub_cache  # for the engine's process as well
        shards = shard_count(settings, os.environ)
        model = find_model(settings, shards)
        settings = replace(settings, num_shard=shards, sharded=None)
        settings = (settings.fitted_to_embed if model.spec.encoder else settings.fitted)(model.context_limit)
        for line in pointless(settings):
            LOG.info(line)
        if settings.revision is not None and settings.model_id is not None and not model.versioned:
            LOG.info("--revision has no effect: %s is no model of the Hub", model.name)
        tracer = None
        if settings.otlp_endpoint is not None:
            from inferometer.server.traces import make_tracer

            tracer = make_tracer(settings.otlp_endpoint, model.name)
        child = Child({}, log.write)
        try:
            child.begin(Begin(settings))
            # Only now, while the engine loads: these imports take a second.
            from inferometer.server.front import Front

            return Front(settings, model, listener, child, tracer).run()
        except KeyboardInterrupt:  # a signal before the event loop heard of any
            hear_no_more()
            child.process.kill()  # it may be in the middle of reading weights
            return 0
        finally:
            child.finish()
            if tracer is not None:
                tracer.close()


def _look_for_packages() -> None:
    """Raises ModuleNotFoundError for one that is not installed, before anything is started."""
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _bind(settings: ServerSettings) -> socket.socket:
    """A bound socket, which nobody can connect to until uvicorn listens: the port is ours, and nobody takes us for ready."""
    host, port = settings.hostname, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise _foreign(host, error) from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _foreign(host, error) from None
        raise UserError(f"--port {port} of {host} cannot be used: {error.strerror or error}; use another --port") from None
    return listener


def _foreign(host: str, error: OSError) -> UserError:
    return UserError(f"--hostname {host} is no address of this machine: {error.strerror or error}; use one that it has, or 0.0.0.0 for all")
