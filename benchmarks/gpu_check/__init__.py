"""`make gpu`: everything that needs a GPU, once, within ten minutes. docs/how_to/gpu_check.md."""
