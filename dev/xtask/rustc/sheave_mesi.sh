#!/usr/bin/env bash
# The compiler of the lab's simulation of cache lines, for RUSTC_WORKSPACE_WRAPPER: rustc with --cfg sheave_lab and --cfg sheave_mesi.
# Cargo calls it for the crates of this workspace only, and keeps what it makes apart from what rustc makes by itself.
# Not sh: dash drops the variables of cargo whose names have a dash in them (CARGO_BIN_EXE_sheave-lab).
exec "$@" --cfg sheave_lab --cfg sheave_mesi
