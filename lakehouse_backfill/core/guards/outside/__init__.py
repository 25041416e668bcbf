"""What job code may not do outside its run: clients, names in its source, declared sinks."""
