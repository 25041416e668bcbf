"""Tables, refs and files through PyIceberg."""
