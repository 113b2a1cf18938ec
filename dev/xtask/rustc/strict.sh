#!/usr/bin/env bash
# The compiler of `cargo xtask api`, for RUSTC_WORKSPACE_WRAPPER: rustc for which a warning is an error. Cargo calls it for the crates
# of this workspace only, so third-party crates are those that clippy has checked.
# Not sh: dash drops the variables of cargo whose names have a dash in them (CARGO_BIN_EXE_sheave-lab).
exec "$@" -D warnings
