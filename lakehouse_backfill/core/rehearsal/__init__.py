"""A rehearsal: the whole path of a restatement on copies of its tables, in another lake."""
