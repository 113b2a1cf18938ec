//! Scenarios of the block layer through its public face: a ring, a device, a test driver.
//!
//! One binary, a module per subject. Nothing here waits for real time to pass.
#![cfg(not(shuttle))]

#[path = "../support/mod.rs"]
mod support;

mod accounting;
mod busy;
mod chaos;
mod crash;
mod gate;
mod host_tags;
mod lanes;
mod life;
mod merges;
mod overdue;
mod parts;
mod refuse;
mod stages;
mod time;
mod trust;
mod waiting;
