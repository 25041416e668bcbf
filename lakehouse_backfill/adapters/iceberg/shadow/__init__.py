"""Shadow tables: zero-copy clones, and the fence that shuts out overtaken writers."""
