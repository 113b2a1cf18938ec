//! Pools and volumes through their public face: one program, with a module for each subject.
//!
//! Programs of their own have those tests that look at the whole process: allocations (`no_alloc.rs`) and memory
//! (`memory.rs`); and `placement.rs`, which docs/volumes.md names for its figures.
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
mod space;
mod threads;
mod water;
