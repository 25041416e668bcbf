"""What a catalog really does, as found out by trying."""

from __future__ import annotations

from pydantic import Field

from lakehouse_backfill.domain.value import Value


class Capabilities(Value):
    """What one catalog did on throw-away tables; `seen` says in words why something is false."""

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
        description="The server offers to commit to several tables at once."
    )
    seen: dict[str, str] = Field(
        default_factory=dict, description="What was answered instead, by capability."
    )

    @property
    def clones(self) -> bool:
        """Whether a run may write into a zero-copy clone that shuts out overtaken writers."""
        return (self.register_table or self.built_clones) and self.new_uuid
