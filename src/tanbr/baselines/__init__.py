"""One file a rival, each behind the interface of what it rivals."""
