"""Where text comes from: the hub, a package, our own generator, the user's own files.

    catalogue  sources.yaml: which data sets and sources there are, their licences and where they come from
    pull       one data set -> shards of documents with a manifest (data/raw/<dataset>/<revision>/)
    hub        pinned revisions, the lock file, the checked download; rows reads the files through `datasets`
    forms       what the hub's files hold: jsonl (with the buckets of hermes), conversations, oasst trees, books,
                a dictionary
    chitchat, synthetic, folder     what the other kinds of data set yield
    records    JSON from outside -> documents; shards writes and reads them

Importing this package sets the environment of the hub's libraries, which read it once, when they are imported:
no telemetry, no progress bars beside ours, no second transfer protocol. What the user has set himself stays.
"""

import os

for _name in (
    "HF_HUB_DISABLE_TELEMETRY",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_HUB_DISABLE_UPDATE_CHECK",
    "HF_HUB_DISABLE_XET",
):
    os.environ.setdefault(_name, "1")
