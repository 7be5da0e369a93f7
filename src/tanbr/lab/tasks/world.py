"""A small world of events, and the ways to say them: what the generated tasks are made of."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tanbr.lab.tasks import lexicon as lex

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
    manner: int | None = None


def draw(rng: Random, *, detail: float = 0.5) -> Event:
    """Draw an event at random, each detail with probability `detail`."""

    def maybe(options: tuple[str, ...]) -> str | None:
        return rng.choice(options) if rng.random() < detail else None

    return Event(
        agent=rng.choice(lex.NOUNS[rng.choice(lex.AGENTS)]),
        verb=rng.randrange(len(lex.VERBS)),
        thing=rng.choice(lex.NOUNS[rng.choice(lex.THINGS)]),
        quality=draw_quality(rng) if rng.random() < detail else None,
        place=maybe(lex.PLACES),
        time=maybe(lex.TIMES),
        manner=rng.randrange(len(lex.MANNERS)) if rng.random() < detail / 2 else None,
    )


def draw_quality(rng: Random) -> tuple[int, int]:
    """Draw a quality: a pair of opposites, and one side of it."""
    return rng.randrange(len(lex.ADJECTIVES)), rng.randrange(2)


def with_article(noun_phrase: str) -> str:
    """Put "a" or "an" before a noun."""
    return f"{'an' if noun_phrase[0] in 'aeiou' else 'a'} {noun_phrase}"


def plural(noun: str) -> str:
    """Form the plural of a noun."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("x") else f"{noun}s"


def verb(rng: Random, event: Event, form: int) -> str:
    """Say what was done, by either synonym: base (form 0), third person (1) or past (2)."""
    return lex.VERBS[event.verb][rng.random() < SYNONYM][form]


def thing(rng: Random, event: Event) -> str:
    """Name the thing with its quality, by either synonym."""
    if event.quality is None:
        return event.thing
    pair, side = event.quality
    return f"{lex.ADJECTIVES[pair][side][rng.random() < SYNONYM]} {event.thing}"


def told(rng: Random, event: Event, *, passive: bool = False) -> str:
    """Say an event in the past tense, with synonyms and the order of adjuncts left to chance."""
    did, it = verb(rng, event, 2), thing(rng, event)
    if passive:
        past = rng.choice(("got", "was"))
        core = f"the {it} {past} {_participle(did)} by the {event.agent}"
    else:
        core = f"the {event.agent} {did} the {it}"
    if event.manner is not None:
        core += f" {lex.MANNERS[event.manner][rng.random() < SYNONYM]}"
    if event.place:
        core += f" in the {event.place}"
    if event.time:
        core = f"on {event.time} {core}" if rng.random() < 0.2 else f"{core} on {event.time}"
    return core


def _participle(past: str) -> str:
    return {"chose": "chosen", "hid": "hidden", "broke": "broken", "stole": "stolen"}.get(past, past)


def another(rng: Random, options: tuple[str, ...], word: str) -> str:
    """Choose any of `options` but `word`."""
    return rng.choice([option for option in options if option != word])


def changed(rng: Random, event: Event) -> Event:
    """Change one fact of an event to another of its kind, so that the words hardly differ."""
    changes: list[Callable[[], Event]] = [
        lambda: replace(event, agent=another(rng, lex.NOUNS[lex.CLASS_OF[event.agent]], event.agent)),
        lambda: replace(event, thing=another(rng, lex.NOUNS[lex.CLASS_OF[event.thing]], event.thing)),
        lambda: replace(event, verb=(event.verb + rng.randrange(1, len(lex.VERBS))) % len(lex.VERBS)),
    ]
    if event.quality is not None:
        pair, side = event.quality
        changes.append(lambda: replace(event, quality=(pair, 1 - side)))
    if event.place is not None:
        place = event.place
        changes.append(lambda: replace(event, place=another(rng, lex.PLACES, place)))
    return rng.choice(changes)()


def implied(rng: Random, event: Event) -> Event:
    """Leave details out, or name a thing or an agent by its class: what is left follows from `event`."""
    dropped: dict[str, Any] = {name: None for name in ("place", "time", "manner", "quality") if rng.random() < 0.6}
    fewer = replace(event, **dropped)
    if rng.random() < 0.4:
        return replace(fewer, thing=lex.CLASS_OF[fewer.thing])
    if rng.random() < 0.4:
        return replace(fewer, agent=lex.CLASS_OF[fewer.agent])
    return fewer
