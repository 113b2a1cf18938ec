//! Sheave: the Linux block I/O fast path in user space.
