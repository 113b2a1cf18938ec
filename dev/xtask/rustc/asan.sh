#!/usr/bin/env bash
# The compiler of `cargo xtask asan`, for RUSTC_WORKSPACE_WRAPPER: rustc with the address sanitizer, whose flag a stable compiler takes
# only when it is told to (RUSTC_BOOTSTRAP). Cargo calls it for the crates of this workspace only: third-party crates are those of the
# ordinary tests, and their own accesses are not looked at. `cargo xtask nightly` has them built with the sanitizer too.
# Not sh: dash drops the variables of cargo whose names have a dash in them (CARGO_BIN_EXE_sheave-lab).
export RUSTC_BOOTSTRAP=1
exec "$@" -Zsanitizer=address
