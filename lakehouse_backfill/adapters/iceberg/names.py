"""Names that the adapter writes into summaries, tags and table properties."""

from __future__ import annotations

PREFIX = "lakehouse-backfill."
#: How the names of our tags begin.
TAGS = "lhb-"
#: The publication token: in the snapshot's summary and in the table's properties.
PUBLICATION = PREFIX + "publication"
RUN_ID = PREFIX + "run-id"
CHUNK_ID = PREFIX + "chunk-id"
#: Attempts that a swap took, in its summary.
ATTEMPTS = PREFIX + "attempts"
#: On a shadow: what it was cloned from.
BASE_SNAPSHOT_ID = PREFIX + "base-snapshot-id"
TARGET = PREFIX + "target"
TARGET_UUID = PREFIX + "target-uuid"
#: On a shadow that the catalog did not register: why, and that it does not hold the base yet.
BUILT_AS = PREFIX + "built-because"
BUILDING = PREFIX + "being-built"
#: On such a shadow: whether this catalog deletes files when a table is dropped; that it is over.
DROP_DELETES = PREFIX + "built-drop-deletes"
RETIRED = PREFIX + "retired"
#: On a shadow: the lease of those who may write, and the UUID that the table got with it.
EPOCH = PREFIX + "epoch"
FENCE_UUID = PREFIX + "fence-uuid"

#: A tag without an age falls to `history.expire.max-ref-age-ms`, and a ref's age counts from its
#: snapshot's timestamp, so only an explicit age that never passes is a pin.
FOREVER_MS = 2**63 - 1
