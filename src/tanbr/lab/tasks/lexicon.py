"""The words of the generated tasks and how their meanings relate: synonyms, classes, opposites, polarity."""

NOUNS: dict[str, tuple[str, ...]] = {  # class → members; a member is always an instance of its class
    "animal": ("dog", "cat", "horse", "goat", "duck", "rabbit", "fox", "owl", "pony", "lamb"),
    "worker": ("farmer", "baker", "teacher", "doctor", "painter", "singer", "pilot", "judge", "tailor", "waiter"),
    "tool": ("hammer", "ladder", "shovel", "drill", "saw", "wrench", "rope", "broom", "bucket", "lantern"),
    "vehicle": ("car", "truck", "bus", "boat", "train", "tractor", "wagon", "bicycle", "ferry", "van"),
    "fruit": ("apple", "pear", "peach", "plum", "lemon", "melon", "cherry", "mango", "grape", "fig"),
    "garment": ("coat", "shirt", "scarf", "hat", "glove", "dress", "jacket", "sock", "belt", "boot"),
    "instrument": ("piano", "violin", "drum", "flute", "guitar", "trumpet", "harp", "cello", "horn", "banjo"),
    "machine": ("printer", "camera", "radio", "clock", "phone", "heater", "laptop", "pump", "fan", "oven"),
}
AGENTS = ("animal", "worker")
THINGS = ("tool", "vehicle", "fruit", "garment", "instrument", "machine")
CLASS_OF = {member: name for name, members in NOUNS.items() for member in members}

# (base, third person, past) of a verb and of its synonym
VERBS: tuple[tuple[tuple[str, str, str], tuple[str, str, str]], ...] = (
    (("find", "finds", "found"), ("discover", "discovers", "discovered")),
    (("buy", "buys", "bought"), ("purchase", "purchases", "purchased")),
    (("fix", "fixes", "fixed"), ("repair", "repairs", "repaired")),
    (("clean", "cleans", "cleaned"), ("wash", "washes", "washed")),
    (("carry", "carries", "carried"), ("haul", "hauls", "hauled")),
    (("watch", "watches", "watched"), ("observe", "observes", "observed")),
    (("choose", "chooses", "chose"), ("select", "selects", "selected")),
    (("hide", "hides", "hid"), ("conceal", "conceals", "concealed")),
    (("break", "breaks", "broke"), ("smash", "smashes", "smashed")),
    (("lift", "lifts", "lifted"), ("raise", "raises", "raised")),
    (("drop", "drops", "dropped"), ("release", "releases", "released")),
    (("pull", "pulls", "pulled"), ("drag", "drags", "dragged")),
    (("want", "wants", "wanted"), ("desire", "desires", "desired")),
    (("paint", "paints", "painted"), ("color", "colors", "colored")),
    (("borrow", "borrows", "borrowed"), ("rent", "rents", "rented")),
    (("steal", "steals", "stole"), ("swipe", "swipes", "swiped")),
)
ADJECTIVES: tuple[tuple[tuple[str, str], tuple[str, str]], ...] = (  # two synonyms, and their two opposites
    (("big", "large"), ("small", "tiny")),
    (("old", "ancient"), ("new", "recent")),
    (("heavy", "weighty"), ("light", "airy")),
    (("clean", "spotless"), ("dirty", "filthy")),
    (("wet", "soaked"), ("dry", "parched")),
    (("cheap", "inexpensive"), ("costly", "expensive")),
    (("bright", "shiny"), ("dim", "dark")),
    (("strong", "sturdy"), ("weak", "fragile")),
)
PLACES = (
    "barn",
    "kitchen",
    "market",
    "garden",
    "office",
    "station",
    "library",
    "harbor",
    "forest",
    "tower",
    "museum",
    "square",
)
TIMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve")
MANNERS: tuple[tuple[str, str], ...] = (
    ("quickly", "rapidly"),
    ("slowly", "gradually"),
    ("quietly", "silently"),
    ("happily", "gladly"),
)

REPORTERS = ("officials", "police", "witnesses", "reporters", "lawyers", "experts")
REPORTING = ("said", "told", "announced", "reported", "confirmed")

FILM_PARTS = (
    "plot",
    "cast",
    "script",
    "acting",
    "ending",
    "music",
    "dialogue",
    "story",
    "pacing",
    "humor",
    "camerawork",
    "premise",
)
POSITIVE = (
    "brilliant", "moving", "charming", "funny", "gripping", "fresh", "clever", "warm", "dazzling", "honest",
    "graceful", "lively", "tender", "superb", "witty", "rich",
)  # fmt: skip
NEGATIVE = (
    "dull", "clumsy", "boring", "shallow", "tired", "bland", "sloppy", "lifeless", "predictable", "hollow",
    "tedious", "awful", "muddled", "stale", "cheesy", "grating",
)  # fmt: skip
HEDGES = ("really", "quite", "utterly", "somewhat", "truly", "rather")
NEGATORS = ("not", "never", "hardly", "far from")

_MEANINGS = {
    word: meaning
    for meaning, words in (
        *((f"verb {i}", (*one, *other)) for i, (one, other) in enumerate(VERBS)),
        *((f"quality {i}.{side}", words) for i, sides in enumerate(ADJECTIVES) for side, words in enumerate(sides)),
        *((f"manner {i}", words) for i, words in enumerate(MANNERS)),
    )
    for word in words
}


def meaning(word: str) -> str:
    """Name what a word means: the same for synonyms and for the forms of a verb; otherwise the word itself."""
    return _MEANINGS.get(word, word)
