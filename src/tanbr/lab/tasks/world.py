"""A small world of events, its words, and the ways to say them: what the generated tasks are made of."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

_WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
NOUNS: dict[str, list[str]] = _WORDS["nouns"]  # class → members
AGENTS = ("animal", "worker")
THINGS = tuple(name for name in NOUNS if name not in AGENTS)
CLASS_OF = {member: name for name, members in NOUNS.items() for member in members}
VERBS, ADJECTIVES, ADVERBS = (_WORDS[name] for name in ("verbs", "adjectives", "adverbs"))  # with their synonyms
PLACES, TIMES, NUMBERS = (_WORDS[name] for name in ("places", "times", "numbers"))
REPORTERS, REPORTING, FILM_PARTS = (_WORDS[name] for name in ("reporters", "reporting", "film_parts"))
POSITIVE, NEGATIVE, HEDGES, NEGATORS = (_WORDS[name] for name in ("positive", "negative", "hedges", "negators"))

_MEANINGS = {
    word: meaning
    for meaning, words in (
        *((f"verb {i}", (*one, *other)) for i, (one, other) in enumerate(VERBS)),
        *((f"quality {i}.{side}", words) for i, sides in enumerate(ADJECTIVES) for side, words in enumerate(sides)),
        *((f"adverb {i}", words) for i, words in enumerate(ADVERBS)),
    )
    for word in words
}


def meaning(word: str) -> str:
    """Name what a word means: the same for synonyms and for the forms of a verb; otherwise the word itself."""
    return _MEANINGS.get(word, word)


SYNONYM = 0.2  # chance that a word is replaced by its synonym


@dataclass(frozen=True)
class Event:
    """Somebody did something to a thing, somewhere, at some time. Words with synonyms are kept as indices."""

    agent: str
    verb: int  # index into VERBS
    thing: str
    quality: tuple[int, int] | None = None  # of the thing: (index into ADJECTIVES, side)
    place: str | None = None
    time: str | None = None
    adverb: int | None = None


def draw(rng: Random, *, detail: float = 0.5) -> Event:
    """Draw an event at random, each detail with probability `detail`."""

    def maybe(options: Sequence[str]) -> str | None:
        return rng.choice(options) if rng.random() < detail else None

    return Event(
        agent=rng.choice(NOUNS[rng.choice(AGENTS)]),
        verb=rng.randrange(len(VERBS)),
        thing=rng.choice(NOUNS[rng.choice(THINGS)]),
        quality=draw_quality(rng) if rng.random() < detail else None,
        place=maybe(PLACES),
        time=maybe(TIMES),
        adverb=rng.randrange(len(ADVERBS)) if rng.random() < detail / 2 else None,
    )


def draw_quality(rng: Random) -> tuple[int, int]:
    """Draw a quality: a pair of opposites, and one side of it."""
    return rng.randrange(len(ADJECTIVES)), rng.randrange(2)


def with_article(noun_phrase: str) -> str:
    """Put "a" or "an" before a noun."""
    return f"{'an' if noun_phrase[0] in 'aeiou' else 'a'} {noun_phrase}"


def plural(noun: str) -> str:
    """Form the plural of a noun."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("x") else f"{noun}s"


def verb(rng: Random, event: Event, form: int) -> str:
    """Say what was done, by either synonym: base (form 0), third person (1) or past (2)."""
    return VERBS[event.verb][rng.random() < SYNONYM][form]


def thing(rng: Random, event: Event) -> str:
    """Name the thing with its quality, by either synonym."""
    if event.quality is None:
        return event.thing
    pair, side = event.quality
    return f"{ADJECTIVES[pair][side][rng.random() < SYNONYM]} {event.thing}"


def told(rng: Random, event: Event, *, passive: bool = False) -> str:
    """Say an event in the past tense, with synonyms and the order of adjuncts left to chance."""
    did, it = verb(rng, event, 2), thing(rng, event)
    if passive:
        past = rng.choice(("got", "was"))
        core = f"the {it} {past} {_participle(did)} by the {event.agent}"
    else:
        core = f"the {event.agent} {did} the {it}"
    if event.adverb is not None:
        core += f" {ADVERBS[event.adverb][rng.random() < SYNONYM]}"
    if event.place:
        core += f" in the {event.place}"
    if event.time:
        core = f"on {event.time} {core}" if rng.random() < 0.2 else f"{core} on {event.time}"
    return core


def _participle(past: str) -> str:
    return {"chose": "chosen", "hid": "hidden", "broke": "broken", "stole": "stolen"}.get(past, past)


def another(rng: Random, options: Sequence[str], word: str) -> str:
    """Choose any of `options` but `word`."""
    return rng.choice([option for option in options if option != word])


def changed(rng: Random, event: Event) -> Event:
    """Change one fact of an event to another of its kind, so that the words hardly differ."""
    changes: list[Callable[[], Event]] = [
        lambda: replace(event, agent=another(rng, NOUNS[CLASS_OF[event.agent]], event.agent)),
        lambda: replace(event, thing=another(rng, NOUNS[CLASS_OF[event.thing]], event.thing)),
        lambda: replace(event, verb=(event.verb + rng.randrange(1, len(VERBS))) % len(VERBS)),
    ]
    if event.quality is not None:
        pair, side = event.quality
        changes.append(lambda: replace(event, quality=(pair, 1 - side)))
    if event.place is not None:
        place = event.place
        changes.append(lambda: replace(event, place=another(rng, PLACES, place)))
    return rng.choice(changes)()


def implied(rng: Random, event: Event) -> Event:
    """Leave details out, or name a thing or an agent by its class: what is left follows from `event`."""
    dropped: dict[str, Any] = {name: None for name in ("place", "time", "adverb", "quality") if rng.random() < 0.6}
    fewer = replace(event, **dropped)
    if rng.random() < 0.4:
        return replace(fewer, thing=CLASS_OF[fewer.thing])
    if rng.random() < 0.4:
        return replace(fewer, agent=CLASS_OF[fewer.agent])
    return fewer
