"""Which code stands behind each stage of the DAG: a real edit of it reruns the stage and what follows.

Left out on purpose: what only words errors, shows progress or moves bytes (see INFRASTRUCTURE), and everything of the
trainer, because an edit of the engine must not throw away a model that took days. The run records the trainer's code.
"""

_PULL = [f"andrea/sources/{name}.py" for name in ("pull", "feed", "shards", "records")]
_HUB = ("hub", "lockfile", "rows", "forms", "jsonl", "hermes", "oasst", "books", "dictionary")
_TEXT = ["andrea/megachat.py", "andrea/packed.py"]

PULL = {
    "hub": [*_PULL, *_TEXT, *(f"andrea/sources/{name}.py" for name in _HUB)],
    "package": [*_PULL, *_TEXT, "andrea/sources/chitchat.py"],
    "synthetic": [*_PULL, *_TEXT, "andrea/sources/synthetic.*", "andrea/sources/talkrows.py", "andrea/philox.py"],
    "files": [*_PULL, *_TEXT, "andrea/sources/folder.py"],
}
MEGACHAT = ["scripts/prep-megachat.py", "andrea/prepare.py", *_TEXT]
TOKENIZER = ["andrea/tokenizer/*.py"]
TOKENS = ["andrea/tokens.py", "andrea/btok.py", "andrea/tokenizer/*.py"]
ARCHIVE = ["andrea/archive.py"]
REPORT = ["andrea/report/*", "andrea/checked.py", "andrea/decimate.py"]

INFRASTRUCTURE = {
    "andrea",
    "andrea.checkpoint",
    "andrea.cli",
    "andrea.errors",
    "andrea.experiment",
    "andrea.files",
    "andrea.paths",
    "andrea.progress",
    "andrea.schema",
    "andrea.sources",
    "andrea.sources.catalogue",  # the entry itself is among the rule's params
    "andrea.sources.huberrors",
}
