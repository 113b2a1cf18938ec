#!/usr/bin/env bash
# The compiler of models under loom, for RUSTC_WORKSPACE_WRAPPER: rustc with --cfg loom. Cargo calls it for the crates of this workspace
# only, and keeps what it makes apart from what rustc makes by itself, so third-party crates are built once for both.
# Not sh: dash drops the variables of cargo whose names have a dash in them (CARGO_BIN_EXE_sheave-lab).
exec "$@" --cfg loom
