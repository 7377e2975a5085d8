"""Phrases that no text of the project may contain, each with the reason and what to write instead.

All of them follow one rule: a sentence names its subject and uses the verbs of the field, so that an engineer who reads
English as a second language understands it at first reading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_THING = (
    "second|minute|hour|day|message|row|event|line|batch|bucket|topic|client|consumer|producer|broker|file|frame|call|"
    "lease|machine|connection|change|push|side|part|job|run|shard|queue|word|backend|thread|core|store|test"
)
_COUNTED = (
    "messages|rows|frames|events|bytes|transactions|occurrences|schedules|times|once|twice|numbers|deliveries|us|ns|ms|"
    r"KB|MB|GB|MiB|[\d,.]*\d ?[kM]?|thousand|million|object|record|row|id|key|event|file|entry|statement|sentence|"
    "index|task|mask|directory|journal|fsync|figure"
)


@dataclass(frozen=True)
class Banned:
    """One phrase: a regular expression, why it is banned, and what to write instead."""

    pattern: str
    reason: str
    instead: str

    def find(self, text: str) -> re.Match[str] | None:
        """The first occurrence in `text`, which may have several lines."""
        return re.search(self.pattern, text, re.IGNORECASE | re.MULTILINE)


METAPHOR = "This is a metaphor."
UNCLEAR = "This verb does not say what happens."
PRIVATE = "Only this project uses the word in this meaning."
IDIOM = "This is an idiom."
NO_SUBJECT = "The sentence does not name its subject."

BANNED: tuple[Banned, ...] = (
    Banned(
        rf"\b(?:{_COUNTED}) (?-i:an?) (?:{_THING})\b(?! (?:time|copy|message|one|key|name)\b)",
        "A rate or a ratio is written with 'per'.",
        "per second, one row per message, once per minute",
    ),
    Banned(r"\b(?:the|our|in) house\b|\bhouse (?:rules|style|format)\b", METAPHOR, "the project, the system"),
    Banned(r"\bgraves?\b|\bbur(?:y|ies|ied|ying)\b|\bdying\b", METAPHOR, "dead letters, the dead-letter topic"),
    Banned(r"\bthe dead\b(?!.?letters?)", METAPHOR, "exhausted messages, dead letters"),
    Banned(r"\bmessages? dies?\b|\b(?:it|they|messages?) died\b", METAPHOR, "became a dead letter, failed"),
    Banned(r"\b(?:go|goes|going|gone|went) by\b", UNCLEAR, "use, follow, trust"),
    Banned(r"\btold\b|\btells? of\b|\btelling\b", UNCLEAR, "report, publish, record, say, notify"),
    Banned(r"\blends?\b|\blent\b|\blending\b", METAPHOR, "share, let other consumers lease from"),
    Banned(r"\bhoard(?:s|er|ers|ed|ing)?\b", METAPHOR, "a consumer that holds messages and does not process them"),
    Banned(r"\bnudg(?:e|es|ed|ing)\b", METAPHOR, "wake-up, notice"),
    Banned(r"\bparcels?\b", METAPHOR, "transfer record, message in transit"),
    Banned(r"\bcouriers?\b", METAPHOR, "the task that completes transfers"),
    Banned(r"\blaps(?:e|es|ed|ing)\b", PRIVATE, "a lease or a membership expires; a message is discarded"),
    Banned(r"\bgiv(?:e|es|en|ing) back\b|\bgave back\b|\bask(?:s|ed)? back\b", PRIVATE, "recall, release, return"),
    Banned(r"\bwhoever\b", NO_SUBJECT, "the broker, the consumer, the first caller that"),
    Banned(r"(?:^|[.;:] )Who (?!is|are|was|owns)\w+", NO_SUBJECT, "a client that, the caller"),
    Banned(r"\brid(?:e|es|ing|den) out\b|\brode out\b", IDIOM, "continue after, survive"),
    Banned(r"\banew\b", IDIOM, "again"),
    Banned(r"\bunmade?\b|\bunmakes?\b", PRIVATE, "delete"),
    Banned(r"\bminds\b|\bmend(?:s|ed)?\b", UNCLEAR, "manages, repairs"),
    Banned(r"\bstray(?:s|ed|ing)?\b", METAPHOR, "differ, be wrong"),
    Banned(r"\b(?:the|its|their) books\b", METAPHOR, "the accounts, the sums"),
    Banned(r"\bsees? to it\b", IDIOM, "ensures"),
    Banned(r"\bdealt\b|\bdeals? (?:the|alike|with them|buckets)\b", PRIVATE, "assign, compute the assignment"),
    Banned(r"\bin peace\b|\bfor good\b|\bon the way\b|\bunder way\b", IDIOM, "undisturbed, permanently, in progress"),
    Banned(r"\bstands? (?:at|by|behind|there|beside)\b", UNCLEAR, "is, is written, has the value"),
    Banned(r", be it\b|\bbe (?:it|they) \w+ or\b", IDIOM, "whether or not"),
    Banned(r"\bgoes? on\b|\bwent on\b|\bgone on\b|\bgoing on\b", "The verb has several meanings.", "continue, happen"),
    Banned(r"(?<!can )\btells?\b", UNCLEAR, "report, notify, record, inform; for a difference: distinguish"),
    Banned(r"\b(?:to|for|by|of|from|than) who\b", NO_SUBJECT, "the caller, the consumers that"),
    Banned(r"\bdoubl(?:es?|ed|ing) (?:nothing|no)\b|\bnor doubles?\b|\band doubles?\b", UNCLEAR, "duplicate"),
    Banned(r"\b(?:is|are|was|were|be) taken for\b", IDIOM, "treated as, mistaken for"),
    Banned(r"\bcut short\b", IDIOM, "interrupted, shortened, truncated"),
    Banned(r"\b(?:holds?|held|holding) (?:the |an? |no )?\w+ up\b(?! to)|\bholds? up\b(?! to)", IDIOM, "delay, block"),
    Banned(r"\bpil(?:es?|ed|ing) up\b", METAPHOR, "accumulate"),
    Banned(r"\bfor ever\b", "It is not clear what ends it.", "permanently, without end, without a time limit"),
    Banned(r"\beverybody\b", NO_SUBJECT, "every consumer, every broker, all clients"),
    Banned(r"\bone too many\b|\bnow and then\b|\bin words\b|\bmakes? no sense\b", IDIOM, "above the limit, invalid"),
)
