"""`python -m fastjax` without a command: the environment report."""
