//! `sheave upgrade`: a new process takes over from a running daemon while clients work.

mod crowd;
mod deaths;
mod failures;
mod guests;
mod kept;
mod load;
mod odd_clients;
mod refusals;
mod rig;
#[path = "../command/sheave.rs"]
#[expect(dead_code, reason = "the tests of other commands use more of it")]
mod sheave;
