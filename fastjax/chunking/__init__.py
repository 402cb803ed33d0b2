"""How long a layer of experts takes in chunks, and what is decided by that."""
