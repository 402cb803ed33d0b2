"""`python -m fastjax simulate`."""
