"""The broker: a process that takes, keeps and delivers messages."""

from dejaq.broker.embedded import Broker

__all__ = ["Broker"]
