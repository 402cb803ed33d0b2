"""fastjax's library for AMD GPUs, libfastjax_rocm.so, which fastjax finds here."""
