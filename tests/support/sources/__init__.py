"""Sources outside a lake, whose whole truth the tests know."""
