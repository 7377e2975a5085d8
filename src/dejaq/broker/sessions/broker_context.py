"""The parts of one broker that a session works with, built once by central."""

from __future__ import annotations

from dataclasses import dataclass

from dejaq.broker.access.gate import CallerGate
from dejaq.broker.background import Background
from dejaq.broker.catalog import Catalog
from dejaq.broker.cluster.cluster import Cluster
from dejaq.broker.delivery.dead_letters import DeadLetterTopics
from dejaq.broker.delivery.progress import ProgressReports
from dejaq.broker.delivery.roster import Rosters
from dejaq.broker.doctor import Doctor
from dejaq.broker.log.topics import LogTopics
from dejaq.broker.metrics import Metrics
from dejaq.broker.recorder import Recorder
from dejaq.broker.rights.guard import Guard
from dejaq.broker.rights.quotas import UserQuotas
from dejaq.broker.sessions.pinger import Pinger
from dejaq.broker.sessions.throttles import Throttles
from dejaq.config import BrokerConfig
from dejaq.storage.base import Storage
from dejaq.timekeeper.alarms import Alarms
from dejaq.timekeeper.clock import Clock


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Config, clock, storage and what is built on them."""

    config: BrokerConfig
    clock: Clock
    storage: Storage
    metrics: Metrics
    background: Background
    doctor: Doctor
    catalog: Catalog
    guard: Guard
    quotas: UserQuotas
    gate: CallerGate
    rosters: Rosters
    throttles: Throttles
    pinger: Pinger
    recorder: Recorder
    cluster: Cluster
    dead_letters: DeadLetterTopics
    reports: ProgressReports
    alarms: Alarms
    logs: LogTopics
