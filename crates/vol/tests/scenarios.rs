//! Pools and volumes through the public API: one program, with a module for each subject.
//!
//! Tests that measure the whole process have their own programs: allocations (`no_alloc.rs`) and memory (`memory.rs`).
//! So has `placement.rs`, which docs/concepts/volumes.md names for its figures.
#![cfg(not(shuttle))]

mod support;

mod account;
mod against_model;
mod beside;
mod changes;
mod check;
mod copies;
mod damage;
mod extend;
mod hostile;
mod in_flight;
mod members;
mod older;
mod pools;
mod recent;
mod space;
mod threads;
mod water;
