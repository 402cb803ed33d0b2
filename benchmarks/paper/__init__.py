"""Tables of FAST's paper (arXiv 2505.09764), made anew by simulation, with peers beside ours."""
