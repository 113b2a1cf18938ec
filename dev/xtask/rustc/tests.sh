#!/usr/bin/env bash
# The compiler of `cargo xtask test`, for RUSTC_WORKSPACE_WRAPPER: rustc that does not optimize the tests themselves, for that takes
# the compiler longer than the tests take without it. What they call is optimized as the profile says. The tests inside the crate
# named below are optimized too: what they test is compiled with them, and they run for longer than their compilation takes.
# Not sh: dash drops the variables of cargo whose names have a dash in them (CARGO_BIN_EXE_sheave-lab).
unoptimized=()
for argument in "$@"; do
    if [ "$argument" = --test ]; then unoptimized=(-C opt-level=0); fi
done
case "${CARGO_CRATE_NAME:-}" in
    sheave_vol) unoptimized=() ;;
esac
exec "$@" "${unoptimized[@]}"
