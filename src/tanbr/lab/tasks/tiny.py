"""Eight generated text tasks that mirror GLUE's eight: an English-like grammar, deterministic by seed, without end.

Each asks its own question of one small world of events. Train and test split texts by a hash, whatever the seeds.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Literal

from tanbr.errors import InputError
from tanbr.lab.tasks import world
from tanbr.lab.tasks.world import Event
from tanbr.tasks.rows import Row, Task
from tanbr.types import Text

Split = Literal["train", "test"]
NOISE = 0.03  # share of labels that are wrong
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
    """Make rows of one task; the same seed gives the same rows, and more of them go on from fewer."""
    if task not in BY_NAME:
        raise InputError(f"unknown task {task!r}; the generated tasks are {', '.join(BY_NAME)}")
    spec, make = BY_NAME[task], _MAKERS[task]
    rng = Random(f"{task}/{seed}/{split}")  # noqa: S311 - data, not secrets
    rows: list[Row] = []
    while len(rows) < count:
        text, target = make(rng)
        if _split_of(text) != split:
            continue
        if rng.random() < NOISE:
            target = rng.uniform(*spec.scale) if spec.graded else rng.randrange(len(spec.labels))
        rows.append(Row(task, text, float(target)))
    return rows


def vocabulary() -> list[str]:
    """List the words that the tasks use, sorted; 4,000 rows a task are enough to show practically all of them."""
    rows = (row for task in TASKS for row in generate(task.name, 4_000, seed=0))
    texts = (part for row in rows for part in ([row.text] if isinstance(row.text, str) else row.text))
    return sorted({word for text in texts for word in text.split()})


def _split_of(text: Text) -> Split:
    """Tell the split a text belongs to: a fifth of all texts are test, by their hash."""
    digest = hashlib.blake2b("\t".join([text] if isinstance(text, str) else text).encode(), digest_size=2).digest()
    return "test" if int.from_bytes(digest) % 5 == 0 else "train"


# --- the eight tasks: each gives a text and the index of its label (or its score) -----------------------------------


def _acceptability(rng: Random) -> tuple[Text, float]:
    plural, near_plural = rng.random() < 0.5, rng.random() < 0.5
    agent, near = rng.choice(world.NOUNS[rng.choice(world.AGENTS)]), rng.choice(world.NOUNS[rng.choice(world.AGENTS)])
    event = world.draw(rng)
    good = rng.random() < 0.7
    fault = None if good else rng.choice(("agreement", "agreement", "determiner", "order", "missing"))
    verb = world.verb(rng, event, 0 if plural != (fault == "agreement") else 1)
    number = plural != (fault == "determiner")
    words = [rng.choice(("these", "many") if number else ("this", "every")), world.plural(agent) if plural else agent]
    if rng.random() < 0.6:  # a noun between subject and verb that may mislead
        words += [rng.choice(("near", "behind", "with")), "the", world.plural(near) if near_plural else near]
    if rng.random() < 0.3:
        words.append("often")
    words += [verb, *world.with_article(world.thing(rng, event)).split()]
    if fault == "order":
        at = rng.randrange(len(words) - 1)
        words[at], words[at + 1] = words[at + 1], words[at]
    elif fault == "missing":
        del words[rng.choice((0, len(words) - 1))]
    if rng.random() < 0.5:
        words += ["in", "the", rng.choice(world.PLACES)]
    return " ".join([*words, "."]), float(good)


def _inference3(rng: Random) -> tuple[Text, float]:
    event, label = world.draw(rng, detail=0.6), rng.randrange(3)
    if label == 0:
        hypothesis = world.told(rng, world.implied(rng, event), passive=rng.random() < PASSIVE)
    elif label == 1:  # a detail that the premise leaves open
        details: dict[str, Any] = {
            "place": rng.choice(world.PLACES),
            "time": rng.choice(world.TIMES),
            "quality": world.draw_quality(rng),
        }
        open_details = [name for name in details if getattr(event, name) is None]
        if not open_details:
            event = replace(event, time=None)
            open_details = ["time"]
        name = rng.choice(open_details)
        hypothesis = world.told(rng, replace(world.implied(rng, event), **{name: details[name]}))
    elif rng.random() < 0.4:
        plain = world.implied(rng, event)
        hypothesis = f"the {plain.agent} did not {world.verb(rng, plain, 0)} the {world.thing(rng, plain)}"
    else:
        hypothesis = world.told(rng, replace(world.changed(rng, event), time=None, adverb=None))
    return (world.told(rng, event) + " .", hypothesis + " ."), label


def _reported(rng: Random, event: Event, count: str) -> str:
    core = world.told(rng, event, passive=rng.random() < PASSIVE)
    source = f"{count} {rng.choice(world.REPORTERS)} {rng.choice(world.REPORTING)}"
    return f"{core} , {source} ." if rng.random() < 0.15 else f"{source} that {core} ."


def _paraphrase(rng: Random) -> tuple[Text, float]:
    event, count = replace(world.draw(rng, detail=0.5), time=None), rng.choice(world.NUMBERS)
    same = rng.random() < 0.6
    other, other_count = event, count
    if not same:
        if rng.random() < 0.3:
            other_count = world.another(rng, world.NUMBERS, count)
        else:
            other = world.changed(rng, event)
    return (_reported(rng, event, count), _reported(rng, other, other_count)), float(same)


def _answerability(rng: Random) -> tuple[Text, float]:
    event = replace(world.draw(rng, detail=0.5), adverb=None)
    answered = rng.random() < 0.5
    kind = rng.choice(("where", "when", "who", "what"))
    event = replace(event, place=event.place or rng.choice(world.PLACES), time=event.time or rng.choice(world.TIMES))
    base = world.verb(rng, event, 0)
    question = {
        "where": f"where did the {event.agent} {base} the {event.thing} ?",
        "when": f"when did the {event.agent} {base} the {event.thing} ?",
        "who": f"who {world.verb(rng, event, 2)} the {event.thing} in the {event.place} ?",
        "what": f"what did the {event.agent} {base} in the {event.place} ?",
    }[kind]
    shown = event
    if not answered:
        if kind == "where" and rng.random() < 0.5:
            shown = replace(event, place=None)
        elif kind == "when" and rng.random() < 0.5:
            shown = replace(event, time=None)
        elif kind == "who":
            shown = replace(event, thing=world.another(rng, world.NOUNS[world.CLASS_OF[event.thing]], event.thing))
        else:
            shown = replace(event, agent=world.another(rng, world.NOUNS[world.CLASS_OF[event.agent]], event.agent))
    answer = world.told(rng, shown, passive=rng.random() < PASSIVE)
    return (question, answer + " ."), float(not answered)


_ASKING = (  # four intents, each with a usual and a roundabout way to ask
    ("how do i {verb} {thing} ?", "what is the best way to {verb} {thing} ?"),
    ("where should i {verb} {thing} ?", "which is the right place to {verb} {thing} ?"),
    ("when should i {verb} {thing} ?", "what is a good time to {verb} {thing} ?"),
    ("why do people {verb} {thing} ?", "for what reason do people {verb} {thing} ?"),
)


def _asked(rng: Random, event: Event, intent: int) -> str:
    template = _ASKING[intent][rng.random() < world.SYNONYM]
    return template.format(verb=world.verb(rng, event, 0), thing=world.with_article(world.thing(rng, event)))


def _duplicates(rng: Random) -> tuple[Text, float]:
    event = replace(world.draw(rng, detail=0.6), place=None)
    intent = other_intent = rng.randrange(len(_ASKING))
    other = event
    if rng.random() < 0.6:
        if rng.random() < 0.3:
            other_intent = (intent + rng.randrange(1, len(_ASKING))) % len(_ASKING)
        else:
            other = world.changed(rng, event)
    facts = [(one.verb, one.thing, one.quality) for one in (event, other)]
    same = intent == other_intent and facts[0] == facts[1]
    return (_asked(rng, event, intent), _asked(rng, other, other_intent)), float(same)


def _inference2(rng: Random) -> tuple[Text, float]:
    first, second = world.draw(rng, detail=0.4), world.draw(rng, detail=0.4)
    follows = rng.random() < 0.5
    if follows:
        claim = world.implied(rng, rng.choice((first, second)))
    elif rng.random() < 0.6:  # who did what is mixed up
        claim = replace(world.implied(rng, first), agent=second.agent)
        follows = claim.agent == first.agent
    else:
        claim = replace(world.changed(rng, second), time=None, adverb=None)
    passage = f"{world.told(rng, first)} and then {world.told(rng, second)} ."
    hypothesis = world.told(rng, claim, passive=rng.random() < PASSIVE)
    return (passage, hypothesis + " ."), float(not follows)


def _clause(rng: Random, positive: bool) -> str:
    negated = rng.random() < 0.35
    word = rng.choice(world.POSITIVE if positive != negated else world.NEGATIVE)
    parts = [rng.choice(("the", "its")), rng.choice(world.FILM_PARTS), "is"]
    parts += [rng.choice(world.NEGATORS)] if negated else [rng.choice(world.HEDGES)] if rng.random() < 0.4 else []
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
    scene = (
        f"{world.with_article(event.agent)} {world.verb(rng, event, 1)} {world.with_article(world.thing(rng, event))}"
    )
    return f"{scene} in the {event.place} ." if event.place else f"{scene} ."


def _similarity(rng: Random) -> tuple[Text, float]:
    event = replace(world.draw(rng, detail=0.7), time=None, adverb=None)
    other, foreign = event, world.draw(rng, detail=0.7)
    for name in ("agent", "verb", "thing", "quality", "place"):
        if rng.random() < 0.4:
            other = replace(other, **{name: getattr(foreign, name)})
    return (_captioned(rng, event), _captioned(rng, other)), 5.0 * _shared(event, other)


def _shared(one: Event, other: Event) -> float:
    """Tell how much two events share, in [0, 1]; being of one class counts half."""

    def noun(a: str, b: str) -> float:
        return 1.0 if a == b else 0.5 if world.CLASS_OF[a] == world.CLASS_OF[b] else 0.0

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
