//! Scenarios of the block layer through its public interface: a ring, a device, a test driver.
//!
//! One binary, with a module per subject. No test depends on real time passing.
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
