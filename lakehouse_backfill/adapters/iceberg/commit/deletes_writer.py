"""Writing manifests of delete files, which PyIceberg 0.12 has no writer for."""

from __future__ import annotations

from pyiceberg.manifest import ManifestContent, ManifestWriterV2
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

_DATA_FILE_FIELD_ID, _EQUALITY_IDS_FIELD_ID, _ELEMENT_FIELD_ID = 2, 135, 136


class DeleteManifestWriter(ManifestWriterV2):
    """Writes a manifest of delete files of format 2, as other engines read it.

    PyIceberg says that equality ids are longs. The format says ints, and Iceberg's Java library
    fails on the whole table when it meets others (Iceberg spec, manifests).
    """

    def content(self) -> ManifestContent:
        """Say what the manifest lists."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        fields = super()._with_partition(format_version).fields
        return Schema(
            *(
                _with_int_equality_ids(each) if each.field_id == _DATA_FILE_FIELD_ID else each
                for each in fields
            )
        )


def _with_int_equality_ids(field: NestedField) -> NestedField:
    kind = field.field_type
    if not isinstance(kind, StructType):
        return field
    fields = [
        _int_list_field(each) if each.field_id == _EQUALITY_IDS_FIELD_ID else each
        for each in kind.fields
    ]
    return field.model_copy(update={"field_type": StructType(*fields)})


def _int_list_field(field: NestedField) -> NestedField:
    ints = ListType(element_id=_ELEMENT_FIELD_ID, element_type=IntegerType(), element_required=True)
    return field.model_copy(update={"field_type": ints})
