#!/usr/bin/env bash
# The compiler of models under shuttle, for RUSTC_WORKSPACE_WRAPPER: rustc with --cfg shuttle. Cargo calls it for the crates of this workspace
# only, and keeps what it makes apart from what rustc makes by itself, so third-party crates are built once for both. Shuttle is a dependency
# of tests; libraries, which they are built upon, get it from SHEAVE_CHECKER, the file that cargo has made of it, and the tests then the same
# one: cargo may make another for each choice of crates.
# Not sh: dash drops the variables of cargo whose names have a dash in them (CARGO_BIN_EXE_sheave-lab).
arguments=()
for argument in "$@"; do
    case "$argument" in
        shuttle=*) [ -z "${SHEAVE_CHECKER:-}" ] || argument="shuttle=$SHEAVE_CHECKER" ;;
    esac
    arguments+=("$argument")
done
if [ -n "${SHEAVE_CHECKER:-}" ] && [ -n "${CARGO_CRATE_NAME:-}" ]; then arguments+=(--extern "shuttle=$SHEAVE_CHECKER"); fi
exec "${arguments[@]}" --cfg shuttle
