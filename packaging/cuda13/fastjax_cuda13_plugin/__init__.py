"""fastjax's library for NVIDIA GPUs, libfastjax_cuda.so, which fastjax finds here."""
