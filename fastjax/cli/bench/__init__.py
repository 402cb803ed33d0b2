"""`python -m fastjax bench`."""
