"""Run job code on pinned inputs and write the shadow."""
