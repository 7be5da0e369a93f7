"""Eight generated text tasks that mirror GLUE's eight: an English-like grammar, deterministic by seed, without end.

Each task asks its own question of the same small world of events ("the farmer found an old lantern in the barn"),
in a style of its own. A text belongs to the train or the test split by a hash of its words, so the two never share
a text whatever the seeds. A few labels in a hundred are wrong (`NOISE`), as in any labelled corpus.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any, Literal

from tanbr.errors import InputError
from tanbr.tasks import lexicon as lex
from tanbr.tasks.rows import Row, Task
from tanbr.types import Text

Split = Literal["train", "test"]
NOISE = 0.03  # share of labels that are wrong
SYNONYM = 0.2  # chance that a word is replaced by its synonym
PASSIVE = 0.1  # chance that a second telling is in the passive

TASKS: tuple[Task, ...] = (
    Task("acceptability", ("matthews",), ("unacceptable", "acceptable")),
    Task("inference3", ("accuracy",), ("entailment", "neutral", "contradiction"), pair=True),
    Task("paraphrase", ("accuracy", "f1"), ("different", "equivalent"), pair=True),
    Task("answerability", ("accuracy",), ("answered", "unanswered"), pair=True),
    Task("duplicates", ("accuracy", "f1"), ("distinct", "duplicate"), pair=True),
    Task("inference2", ("accuracy",), ("entailment", "not_entailment"), pair=True),
    Task("sentiment", ("accuracy",), ("negative", "positive")),
    Task("similarity", ("pearson", "spearman"), scale=(0.0, 5.0), pair=True),
)
BY_NAME = {task.name: task for task in TASKS}


def generate(task: str, count: int, *, seed: int, split: Split = "train") -> list[Row]:
    """Make the first `count` rows of `stream`."""
    return list(islice(stream(task, seed=seed, split=split), count))


def stream(task: str, *, seed: int, split: Split = "train") -> Iterator[Row]:
    """Yield rows of one task for ever; the same seed gives the same rows."""
    if task not in BY_NAME:
        raise InputError(f"unknown task {task!r}; the generated tasks are {', '.join(BY_NAME)}")
    spec, make = BY_NAME[task], _MAKERS[task]
    rng = Random(f"{task}/{seed}/{split}")  # noqa: S311 - data, not secrets
    while True:
        text, target = make(rng)
        if split_of(text) != split:
            continue
        if rng.random() < NOISE:
            target = rng.uniform(*spec.scale) if spec.graded else rng.randrange(len(spec.labels))
        yield Row(task, text, float(target))


def vocabulary() -> list[str]:
    """List every word that the tasks use, sorted: as good as surely all of them turn up in some thousand rows."""
    rows = (row for task in TASKS for row in generate(task.name, 4_000, seed=0))
    texts = (part for row in rows for part in ([row.text] if isinstance(row.text, str) else row.text))
    return sorted({word for text in texts for word in text.split()})


def split_of(text: Text) -> Split:
    """Tell the split a text belongs to: a fifth of all texts are test, by their hash."""
    digest = hashlib.blake2b("\t".join([text] if isinstance(text, str) else text).encode(), digest_size=2).digest()
    return "test" if int.from_bytes(digest) % 5 == 0 else "train"


# --- the world: events, and the ways to say them -----------------------------------------------------------------


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


def _event(rng: Random, *, detail: float = 0.5) -> Event:
    def maybe(options: tuple[str, ...]) -> str | None:
        return rng.choice(options) if rng.random() < detail else None

    return Event(
        agent=rng.choice(lex.NOUNS[rng.choice(lex.AGENTS)]),
        verb=rng.randrange(len(lex.VERBS)),
        thing=rng.choice(lex.NOUNS[rng.choice(lex.THINGS)]),
        quality=_quality(rng) if rng.random() < detail else None,
        place=maybe(lex.PLACES),
        time=maybe(lex.TIMES),
        manner=rng.randrange(len(lex.MANNERS)) if rng.random() < detail / 2 else None,
    )


def _quality(rng: Random) -> tuple[int, int]:
    return rng.randrange(len(lex.ADJECTIVES)), rng.randrange(2)


def _a(noun_phrase: str) -> str:
    return f"{'an' if noun_phrase[0] in 'aeiou' else 'a'} {noun_phrase}"


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("x") else f"{noun}s"


def _verb(rng: Random, event: Event, form: int) -> str:
    return lex.VERBS[event.verb][rng.random() < SYNONYM][form]


def _thing(rng: Random, event: Event) -> str:
    if event.quality is None:
        return event.thing
    pair, side = event.quality
    return f"{lex.ADJECTIVES[pair][side][rng.random() < SYNONYM]} {event.thing}"


def _told(rng: Random, event: Event, *, passive: bool = False) -> str:
    """Say an event in the past tense, with synonyms and the order of adjuncts left to chance."""
    verb, thing = _verb(rng, event, 2), _thing(rng, event)
    if passive:
        past = rng.choice(("got", "was"))
        core = f"the {thing} {past} {_participle(verb)} by the {event.agent}"
    else:
        core = f"the {event.agent} {verb} the {thing}"
    if event.manner is not None:
        core += f" {lex.MANNERS[event.manner][rng.random() < SYNONYM]}"
    if event.place:
        core += f" in the {event.place}"
    if event.time:
        core = f"on {event.time} {core}" if rng.random() < 0.2 else f"{core} on {event.time}"
    return core


def _participle(past: str) -> str:
    return {"chose": "chosen", "hid": "hidden", "broke": "broken", "stole": "stolen"}.get(past, past)


def _other(rng: Random, options: tuple[str, ...], word: str) -> str:
    return rng.choice([option for option in options if option != word])


def _changed(rng: Random, event: Event) -> Event:
    """Change one fact of an event to another of its kind, so that the words hardly differ."""
    changes: list[Callable[[], Event]] = [
        lambda: replace(event, agent=_other(rng, lex.NOUNS[lex.CLASS_OF[event.agent]], event.agent)),
        lambda: replace(event, thing=_other(rng, lex.NOUNS[lex.CLASS_OF[event.thing]], event.thing)),
        lambda: replace(event, verb=(event.verb + rng.randrange(1, len(lex.VERBS))) % len(lex.VERBS)),
    ]
    if event.quality is not None:
        pair, side = event.quality
        changes.append(lambda: replace(event, quality=(pair, 1 - side)))
    if event.place is not None:
        place = event.place
        changes.append(lambda: replace(event, place=_other(rng, lex.PLACES, place)))
    return rng.choice(changes)()


def _less(rng: Random, event: Event) -> Event:
    """Leave details out, or name a thing or an agent by its class: what is left follows from `event`."""
    dropped: dict[str, Any] = {name: None for name in ("place", "time", "manner", "quality") if rng.random() < 0.6}
    fewer = replace(event, **dropped)
    if rng.random() < 0.4:
        return replace(fewer, thing=lex.CLASS_OF[fewer.thing])
    if rng.random() < 0.4:
        return replace(fewer, agent=lex.CLASS_OF[fewer.agent])
    return fewer


# --- the eight tasks: each gives a text and the index of its label (or its score) -----------------------------------


def _acceptability(rng: Random) -> tuple[Text, float]:
    plural, near_plural = rng.random() < 0.5, rng.random() < 0.5
    agent, near = rng.choice(lex.NOUNS[rng.choice(lex.AGENTS)]), rng.choice(lex.NOUNS[rng.choice(lex.AGENTS)])
    event = _event(rng)
    good = rng.random() < 0.7
    fault = None if good else rng.choice(("agreement", "agreement", "determiner", "order", "missing"))
    verb = _verb(rng, event, 0 if plural != (fault == "agreement") else 1)
    number = plural != (fault == "determiner")
    words = [rng.choice(("these", "many") if number else ("this", "every")), _plural(agent) if plural else agent]
    if rng.random() < 0.6:  # a noun between subject and verb that may mislead
        words += [rng.choice(("near", "behind", "with")), "the", _plural(near) if near_plural else near]
    if rng.random() < 0.3:
        words.append("often")
    words += [verb, *_a(_thing(rng, event)).split()]
    if fault == "order":
        at = rng.randrange(len(words) - 1)
        words[at], words[at + 1] = words[at + 1], words[at]
    elif fault == "missing":
        del words[rng.choice((0, len(words) - 1))]
    if rng.random() < 0.5:
        words += ["in", "the", rng.choice(lex.PLACES)]
    return " ".join([*words, "."]), float(good)


def _inference3(rng: Random) -> tuple[Text, float]:
    event, label = _event(rng, detail=0.6), rng.randrange(3)
    if label == 0:
        hypothesis = _told(rng, _less(rng, event), passive=rng.random() < PASSIVE)
    elif label == 1:  # a detail that the premise leaves open
        details: dict[str, Any] = {
            "place": rng.choice(lex.PLACES),
            "time": rng.choice(lex.TIMES),
            "quality": _quality(rng),
        }
        open_details = [name for name in details if getattr(event, name) is None]
        if not open_details:
            event = replace(event, time=None)
            open_details = ["time"]
        name = rng.choice(open_details)
        hypothesis = _told(rng, replace(_less(rng, event), **{name: details[name]}))
    elif rng.random() < 0.4:
        plain = _less(rng, event)
        hypothesis = f"the {plain.agent} did not {_verb(rng, plain, 0)} the {_thing(rng, plain)}"
    else:
        hypothesis = _told(rng, replace(_changed(rng, event), time=None, manner=None))
    return (_told(rng, event) + " .", hypothesis + " ."), label


def _reported(rng: Random, event: Event, count: str) -> str:
    core = _told(rng, event, passive=rng.random() < PASSIVE)
    source = f"{count} {rng.choice(lex.REPORTERS)} {rng.choice(lex.REPORTING)}"
    return f"{core} , {source} ." if rng.random() < 0.15 else f"{source} that {core} ."


def _paraphrase(rng: Random) -> tuple[Text, float]:
    event, count = replace(_event(rng, detail=0.5), time=None), rng.choice(lex.NUMBERS)
    same = rng.random() < 0.6
    other, other_count = event, count
    if not same:
        if rng.random() < 0.3:
            other_count = _other(rng, lex.NUMBERS, count)
        else:
            other = _changed(rng, event)
    return (_reported(rng, event, count), _reported(rng, other, other_count)), float(same)


def _answerability(rng: Random) -> tuple[Text, float]:
    event = replace(_event(rng, detail=0.5), manner=None)
    answered = rng.random() < 0.5
    kind = rng.choice(("where", "when", "who", "what"))
    event = replace(event, place=event.place or rng.choice(lex.PLACES), time=event.time or rng.choice(lex.TIMES))
    base = _verb(rng, event, 0)
    question = {
        "where": f"where did the {event.agent} {base} the {event.thing} ?",
        "when": f"when did the {event.agent} {base} the {event.thing} ?",
        "who": f"who {_verb(rng, event, 2)} the {event.thing} in the {event.place} ?",
        "what": f"what did the {event.agent} {base} in the {event.place} ?",
    }[kind]
    shown = event
    if not answered:
        if kind == "where" and rng.random() < 0.5:
            shown = replace(event, place=None)
        elif kind == "when" and rng.random() < 0.5:
            shown = replace(event, time=None)
        elif kind == "who":
            shown = replace(event, thing=_other(rng, lex.NOUNS[lex.CLASS_OF[event.thing]], event.thing))
        else:
            shown = replace(event, agent=_other(rng, lex.NOUNS[lex.CLASS_OF[event.agent]], event.agent))
    answer = _told(rng, shown, passive=rng.random() < PASSIVE)
    return (question, answer + " ."), float(not answered)


_ASKING = (  # four intents, each with a usual and a roundabout way to ask
    ("how do i {verb} {thing} ?", "what is the best way to {verb} {thing} ?"),
    ("where should i {verb} {thing} ?", "which is the right place to {verb} {thing} ?"),
    ("when should i {verb} {thing} ?", "what is a good time to {verb} {thing} ?"),
    ("why do people {verb} {thing} ?", "for what reason do people {verb} {thing} ?"),
)


def _asked(rng: Random, event: Event, intent: int) -> str:
    template = _ASKING[intent][rng.random() < SYNONYM]
    return template.format(verb=_verb(rng, event, 0), thing=_a(_thing(rng, event)))


def _duplicates(rng: Random) -> tuple[Text, float]:
    event = replace(_event(rng, detail=0.6), place=None)
    intent = other_intent = rng.randrange(len(_ASKING))
    other = event
    if rng.random() < 0.6:
        if rng.random() < 0.3:
            other_intent = (intent + rng.randrange(1, len(_ASKING))) % len(_ASKING)
        else:
            other = _changed(rng, event)
    same = intent == other_intent and _asks_the_same(event, other)
    return (_asked(rng, event, intent), _asked(rng, other, other_intent)), float(same)


def _asks_the_same(one: Event, other: Event) -> bool:
    return (one.verb, one.thing, one.quality) == (other.verb, other.thing, other.quality)


def _inference2(rng: Random) -> tuple[Text, float]:
    first, second = _event(rng, detail=0.4), _event(rng, detail=0.4)
    follows = rng.random() < 0.5
    if follows:
        claim = _less(rng, rng.choice((first, second)))
    elif rng.random() < 0.6:  # who did what is mixed up
        claim = replace(_less(rng, first), agent=second.agent)
        follows = claim.agent == first.agent
    else:
        claim = replace(_changed(rng, second), time=None, manner=None)
    passage = f"{_told(rng, first)} and then {_told(rng, second)} ."
    hypothesis = _told(rng, claim, passive=rng.random() < PASSIVE)
    return (passage, hypothesis + " ."), float(not follows)


def _clause(rng: Random, positive: bool) -> str:
    negated = rng.random() < 0.35
    word = rng.choice(lex.POSITIVE if positive != negated else lex.NEGATIVE)
    parts = [rng.choice(("the", "its")), rng.choice(lex.FILM_PARTS), "is"]
    parts += [rng.choice(lex.NEGATORS)] if negated else [rng.choice(lex.HEDGES)] if rng.random() < 0.4 else []
    return " ".join([*parts, word])


def _sentiment(rng: Random) -> tuple[Text, float]:
    positive = rng.random() < 0.56
    shape = rng.randrange(4)
    main = _clause(rng, positive)
    if shape == 0:
        return main, float(positive)
    if shape == 1:
        return f"{_clause(rng, positive)} and {main}", float(positive)
    against = _clause(rng, not positive)  # the clause after "but", or the one not conceded, decides
    return (f"{against} but {main}" if shape == 2 else f"{main} although {against}"), float(positive)


def _captioned(rng: Random, event: Event) -> str:
    scene = f"{_a(event.agent)} {_verb(rng, event, 1)} {_a(_thing(rng, event))}"
    return f"{scene} in the {event.place} ." if event.place else f"{scene} ."


def _similarity(rng: Random) -> tuple[Text, float]:
    event = replace(_event(rng, detail=0.7), time=None, manner=None)
    other, foreign = event, _event(rng, detail=0.7)
    for name in ("agent", "verb", "thing", "quality", "place"):
        if rng.random() < 0.4:
            other = replace(other, **{name: getattr(foreign, name)})
    return (_captioned(rng, event), _captioned(rng, other)), 5.0 * _shared(event, other)


def _shared(one: Event, other: Event) -> float:
    """Tell how much two events share, in [0, 1]; being of one class counts half."""

    def noun(a: str, b: str) -> float:
        return 1.0 if a == b else 0.5 if lex.CLASS_OF[a] == lex.CLASS_OF[b] else 0.0

    return (
        0.25 * noun(one.agent, other.agent)
        + 0.25 * (one.verb == other.verb)
        + 0.25 * noun(one.thing, other.thing)
        + 0.125 * (one.quality == other.quality)
        + 0.125 * (one.place == other.place)
    )


_MAKERS: dict[str, Callable[[Random], tuple[Text, float]]] = {
    "acceptability": _acceptability,
    "inference3": _inference3,
    "paraphrase": _paraphrase,
    "answerability": _answerability,
    "duplicates": _duplicates,
    "inference2": _inference2,
    "sentiment": _sentiment,
    "similarity": _similarity,
}
