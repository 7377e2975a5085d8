"""The systems by name. A module is imported when its system is used, so that one missing client stops no other."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from bench.systems.base import System


def _made(module: str, name: str, **options: object) -> Callable[[], System]:
    def make() -> System:
        made: System = import_module(f"bench.systems.{module}").system(name, **options)
        return made

    return make


def _ready(module: str, attribute: str) -> Callable[[], System]:
    def get() -> System:
        found: System = getattr(import_module(f"bench.systems.{module}"), attribute)
        return found

    return get


SYSTEMS: dict[str, Callable[[], System]] = {
    "dejaq": _made("dejaq_broker", "dejaq", natural=False),
    "dejaq-natural": _made("dejaq_broker", "dejaq-natural", natural=True),
    "redis-always": _made("redis_queue", "redis-always", appendfsync="always"),
    "redis-everysec": _made("redis_queue", "redis-everysec", appendfsync="everysec"),
    "beanstalkd-fsync": _made("beanstalkd", "beanstalkd-fsync", each=True),
    "beanstalkd": _made("beanstalkd", "beanstalkd", each=False),
    "nats-always": _made("nats_jetstream", "nats-always", always=True),
    "nats": _made("nats_jetstream", "nats", always=False),
    "rabbitmq": _ready("rabbitmq", "RABBITMQ"),
    "skip-locked": _ready("skip_locked", "SKIP_LOCKED"),
    "procrastinate": _ready("procrastinate_jobs", "PROCRASTINATE"),
    "celery": _ready("celery_eta", "CELERY"),
}


def system_named(name: str) -> System:
    """The system; raises KeyError for an unknown name and ImportError when its client is not installed."""
    return SYSTEMS[name]()
