"""What a build and its serving will need, before anything is bought or started."""
