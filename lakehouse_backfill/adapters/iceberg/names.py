"""Names that the adapter writes into summaries, tags and table properties."""

from __future__ import annotations

PROPERTY_PREFIX = "lakehouse-backfill."
#: How the names of our tags begin.
TAG_PREFIX = "lhb-"
#: The publication token: in the snapshot's summary and in the table's properties.
PUBLICATION_PROPERTY = PROPERTY_PREFIX + "publication"
RUN_ID_PROPERTY = PROPERTY_PREFIX + "run-id"
CHUNK_ID_PROPERTY = PROPERTY_PREFIX + "chunk-id"
#: Attempts that a swap took, in its summary.
ATTEMPTS_PROPERTY = PROPERTY_PREFIX + "attempts"
#: On a shadow: what it was cloned from.
BASE_SNAPSHOT_PROPERTY = PROPERTY_PREFIX + "base-snapshot-id"
TARGET_PROPERTY = PROPERTY_PREFIX + "target"
TARGET_UUID_PROPERTY = PROPERTY_PREFIX + "target-uuid"
#: On a shadow that the catalog did not register: why, and that it does not hold the base yet.
BUILT_BECAUSE_PROPERTY = PROPERTY_PREFIX + "built-because"
BEING_BUILT_PROPERTY = PROPERTY_PREFIX + "being-built"
#: On such a shadow: whether this catalog deletes files when a table is dropped; that it is over.
DROP_DELETES_PROPERTY = PROPERTY_PREFIX + "built-drop-deletes"
RETIRED_PROPERTY = PROPERTY_PREFIX + "retired"
#: On a shadow: the lease of those who may write, and the UUID that the table got with it.
EPOCH_PROPERTY = PROPERTY_PREFIX + "epoch"
FENCE_UUID_PROPERTY = PROPERTY_PREFIX + "fence-uuid"

#: A tag without an age falls to `history.expire.max-ref-age-ms`, and a ref's age counts from its
#: snapshot's timestamp, so only an explicit age that never passes is a pin.
NEVER_EXPIRES_MS = 2**63 - 1
