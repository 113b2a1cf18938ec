//! Sheave floor 1: sync facade, sbitmap, mpscq, buffers, units, status, clock
