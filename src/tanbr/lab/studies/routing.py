"""How often a prompt reaches the adapter of its task: GLUE's texts in instructions, as FLAN has them.

    python -m tanbr.lab.studies.routing --data GLUE_FOLDER --out docs/results/engines/routing.json

Every task has five instructions. The history has prompts of GLUE's train text in four of them; requests are of its dev
text, in these four, or in the fifth, which the recogniser has never read. The panel has one adapter a task.
Pairs that ask alike (MNLI and RTE; MRPC, QQP and STS-B) share an instruction now and then, as they do in FLAN.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from tanbr.files import write_atomically
from tanbr.lab.tasks import glue
from tanbr.monitor import Monitor
from tanbr.serve.panel import Assignment
from tanbr.types import Decision, Text

HISTORY, REQUESTS = 500, 1000  # prompts of each task
SAME = "{0}\n{1}\nDo these two sentences mean the same thing? Options: no, yes"
FOLLOWS = (
    '{0}\n\nBased on the paragraph above, can we conclude that "{1}"? Options: yes, it is not possible to tell, no'
)
INSTRUCTIONS = {  # the last one is held out of the history
    "CoLA": (
        "Is the following sentence grammatical? \"{0}\" Options: unacceptable, acceptable",
        "Sentence: {0}\nWould a linguist find this sentence acceptable?",
        "{0}\nIs this correct English? Answer yes or no.",
        "Grade this sentence for grammar: {0}\nOptions: acceptable, unacceptable",
        "Does this sound like natural, well-formed English to you? {0}",
    ),
    "SST-2": (
        "Review: {0}\nIs this movie review sentence negative or positive?",
        "What is the sentiment of the following review? {0}",
        "{0}\nHow would the writer rate the film? Options: negative, positive",
        "Generate a sentiment label for: {0}",
        "Did this critic enjoy the movie? {0}",
    ),
    "MRPC": (
        SAME,
        "Are these two news sentences paraphrases?\n1. {0}\n2. {1}",
        "Sentence 1: {0}\nSentence 2: {1}\nDo they have the same meaning?",
        "Does the first sentence say what the second says? {0} / {1}",
        "Tell me whether one of these is a rewording of the other.\nA: {0}\nB: {1}",
    ),
    "STS-B": (
        "How similar are these two sentences, from 0 to 5?\n{0}\n{1}",
        "Rate the textual similarity: \"{0}\" and \"{1}\"",
        "Sentence 1: {0}\nSentence 2: {1}\nOn a scale from 0 to 5, how alike are they?",
        "{0}\n{1}\nWhat is the similarity score of these two sentences?",
        "Give a number for how close in meaning these are: {0} ||| {1}",
    ),
    "QQP": (
        SAME,
        "Are these two questions asking the same thing?\n{0}\n{1}",
        "Question 1: {0}\nQuestion 2: {1}\nAre they duplicates?",
        "Would the answer to \"{0}\" also answer \"{1}\"?",
        "Here are two posts of a forum. Should they be merged?\n- {0}\n- {1}",
    ),
    "MNLI": (
        FOLLOWS,
        "Premise: {0}\nHypothesis: {1}\nDoes the premise entail the hypothesis?",
        "If {0}, is it true that {1}? Options: yes, maybe, no",
        "{0}\nStatement: {1}\nEntailment, neutral or contradiction?",
        "Take this as given: {0} What about this claim: {1}",
    ),
    "QNLI": (
        "Does the sentence \"{1}\" answer the question \"{0}\"?",
        "Question: {0}\nSentence: {1}\nIs the answer in the sentence?",
        "{1}\nDoes this text tell us: {0}",
        "Can the question \"{0}\" be answered from: {1}",
        "I want to know this: {0} Will reading the following help me? {1}",
    ),
    "RTE": (
        FOLLOWS,
        "{0}\nQuestion with options: does this entail that {1}?",
        "Text: {0}\nIs it right that {1}? Options: yes, no",
        "Read this and say whether the claim follows.\n{0}\nClaim: {1}",
        "According to this passage, is the last line true? {0} || {1}",
    ),
}  # fmt: skip


def prompts(task: str, texts: list[Text], chosen: slice, rng: np.random.Generator) -> list[str]:
    """Put each text into one of the chosen instructions of its task."""
    said = INSTRUCTIONS[task][chosen]
    parts = [(text,) if isinstance(text, str) else text for text in texts]
    return [
        said[number].format(*of) for number, of in zip(rng.integers(len(said), size=len(parts)), parts, strict=True)
    ]


def routed(folder: str) -> dict[str, object]:
    """Share of each task's prompts that its own adapter gets."""
    rng, tasks = np.random.default_rng(0), tuple(INSTRUCTIONS)
    train, dev = glue.load(folder, split="train", limit=HISTORY), glue.load(folder, split="dev", limit=REQUESTS)
    monitor, V = Monitor(tasks), len(tasks)
    past = {task: prompts(task, [row.text for row in train[task]], slice(4), rng) for task in tasks}
    monitor.learn([one for task in tasks for one in past[task]], [task for task in tasks for _ in past[task]])
    panel = Decision(0, np.full(V, 1 / V), np.eye(V), estimates=np.eye(V))
    assignment = Assignment(panel, monitor.snapshot())
    found: dict[str, object] = {}
    for name, chosen in (("instructions of the history", slice(4)), ("instructions never read", slice(4, None))):
        shares = {}
        for place, task in enumerate(tasks):
            asked = prompts(task, [row.text for row in dev[task]], chosen, rng)
            went = assignment.places(assignment.recogniser.recognise(list(asked)))
            shares[task] = round(float((went == place).mean()), 4)
        found[name] = {"all tasks alike": round(float(np.mean(list(shares.values()))), 4), **shares}
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with GLUE's TSV folders")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args(arguments)
    about = {
        "command": "python -m tanbr.lab.studies.routing --data GLUE",
        "prompts": f"{HISTORY} of each task in the history, at most {REQUESTS} asked",
    }
    text = json.dumps(about | {"share that reaches the adapter of its task": routed(options.data)}, indent=1)
    print(text)
    if options.out:
        write_atomically(options.out, text + "\n")


if __name__ == "__main__":
    main()
