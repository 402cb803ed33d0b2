"""What JAX traces into programs: primitives, their rules, and plans that programs make."""
