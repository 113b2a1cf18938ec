//! The command `sheave` from outside. One program for all of it: each test starts the binary, so they share nothing but
//! the helpers in [`sheave`].

mod backup;
mod bench_vol;
mod confined;
mod control;
mod copies;
mod daemon;
mod daemon_units;
mod diffs;
mod held;
mod interop;
mod jobs;
mod json;
mod json_reference;
mod log;
mod man;
mod odd_orders;
mod old_and_damaged;
mod on_disk;
mod overwrite;
mod pool;
mod refusals;
mod refused;
mod rescue;
mod seccomp;
mod serve;
mod sheave;
mod signals;
mod soak;
mod space_back;
mod system_calls;
mod tls;
mod traps;
mod verify;
mod volume;
mod without_io_uring;
