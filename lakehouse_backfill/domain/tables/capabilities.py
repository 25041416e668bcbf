"""What a catalog was seen to do."""

from __future__ import annotations

from pydantic import Field

from lakehouse_backfill.domain.serialization import Value


class Capabilities(Value):
    """Observed behaviour of one catalog on test tables; `seen` explains each false capability."""

    tags: bool = Field(description="A tag is kept, with the age that it was given.")
    branches: bool = Field(description="A branch is kept.")
    branch_commits: bool = Field(
        description="A live writer on main goes on when a branch got a commit in between."
    )
    register_table: bool = Field(
        description="A table registered from a metadata file comes back as it was written."
    )
    built_clones: bool = Field(
        description="A new table takes another's columns, by their ids, and its snapshot."
    )
    new_uuid: bool = Field(description="A table takes a new UUID: an overtaken writer is shut out.")
    data_path: bool = Field(
        description="A table keeps a write.data.path outside of its own location."
    )
    views: bool = Field(description="SQL views can be made, by PyIceberg or by Spark.")
    multi_table_commit: bool = Field(
        description="One commit changes several tables, or none of them."
    )
    # What older releases kept lacks these: nobody has looked, and runs go on as before.
    overlap: bool = Field(
        default=True,
        description="A table keeps a write.data.path inside of another table's location.",
    )
    rights_beside: bool = Field(
        default=True,
        description="With the credentials that come with a table, files beside it are written, "
        "and with those of its clone its own are read.",
    )
    client_planning: bool = Field(
        default=True,
        description="The server lets clients read manifests, and plan scans themselves.",
    )
    idempotency_keys: bool = Field(
        default=False, description="The server executes a change once for each Idempotency-Key."
    )
    unregister: bool = Field(
        default=False, description="A table is taken out of the catalog without a drop."
    )
    seen: dict[str, str] = Field(
        default_factory=dict, description="What was answered instead, by capability."
    )

    @property
    def clones(self) -> bool:
        """Whether a run may use a zero-copy clone that shuts out writers with an expired lease."""
        return (self.register_table or self.built_clones) and self.new_uuid

    @property
    def proof_limit(self) -> str:
        """Say which proofs this catalog does not allow, and why; empty if nothing speaks against.

        Follows from the settings that `doctor` saw; whether a file is missing was not looked at.
        """
        if self.client_planning:
            return ""
        return (
            "`doctor` found that the catalog wants to plan scans itself (client_planning: no): the "
            "lists of files that are read here may lack some, so nothing here proves that these "
            "are all files and rows of a table"
        )
