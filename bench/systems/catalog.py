"""The systems by name.

A module is imported when its system is used, so that a missing client affects no other system.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from bench.systems.base import ChangerById, SingleSender, System
from bench.systems.slow_consumer import SlowConsumer


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
    "dejaq-postgres": _made("dejaq_postgres", "dejaq-postgres", natural=False),
    "dejaq-postgres-natural": _made("dejaq_postgres", "dejaq-postgres-natural", natural=True),
    "dejaq-cluster": _made("dejaq_cluster", "dejaq-cluster"),
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
    "dejaq-log": _made("log_dejaq", "dejaq-log"),
    "redis-streams": _made("log_redis", "redis-streams"),
    "kafka": _made("log_kafka", "kafka", flush=False),
    "kafka-flush": _made("log_kafka", "kafka-flush", flush=True),
    "nats-stream": _made("nats_jetstream", "nats-stream", always=False, log=True),
}


def _client(module: str, name: str) -> Callable[[str], Any]:
    def make(address: str) -> Any:
        return getattr(import_module(f"bench.systems.{module}"), name)(address)

    return make


# The clients of single workloads, by the name of the system.
SENDERS: dict[str, Callable[[str], SingleSender]] = {
    "dejaq-natural": _client("dejaq_own_ids", "DejaqSender"),
    "dejaq-postgres-natural": _client("dejaq_own_ids", "DejaqSender"),
    "redis-always": _client("redis_own_ids", "RedisSender"),
    "redis-everysec": _client("redis_own_ids", "RedisSender"),
    "skip-locked": _client("skip_locked_own_ids", "SkipLockedSender"),
}
CHANGERS: dict[str, Callable[[str], ChangerById]] = {
    "dejaq-natural": _client("dejaq_own_ids", "DejaqById"),
    "dejaq-postgres-natural": _client("dejaq_own_ids", "DejaqById"),
    "redis-always": _client("redis_own_ids", "RedisById"),
    "redis-everysec": _client("redis_own_ids", "RedisById"),
    "skip-locked": _client("skip_locked_own_ids", "SkipLockedById"),
}

SLOW_CONSUMERS: dict[str, Callable[[str], SlowConsumer]] = {
    "dejaq-natural": _client("slow_consumer_dejaq", "DejaqSlowConsumer"),
    "redis-always": _client("slow_consumer_redis", "RedisSlowConsumer"),
    "redis-everysec": _client("slow_consumer_redis", "RedisSlowConsumer"),
}


def system_named(name: str) -> System:
    """The system; raises KeyError for an unknown name and ImportError when its client is not installed."""
    return SYSTEMS[name]()
