// What a UCX that is too old looks like to whoever loads it.
extern "C" __attribute__((visibility("default"))) void ucp_get_version(unsigned* major, unsigned* minor,
                                                                       unsigned* release) {
  *major = 1;
  *minor = 12;
  *release = 3;
}
