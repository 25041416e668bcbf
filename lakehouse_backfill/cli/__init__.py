"""The command line: typed options, one call of the project, one rendering."""
