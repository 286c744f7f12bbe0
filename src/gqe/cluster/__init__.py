"""The same jobs on many machines, by Ray."""
