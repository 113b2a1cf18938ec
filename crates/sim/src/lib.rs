//! The crash simulator: a disk that forgets, a model that does not, and seeded runs that compare the two.
//!
//! | module | holds |
//! |---|---|
//! | [`disk`] | a simulated disk, its volatile cache, and what a crash leaves of it |
//! | [`tag`] | data that says who wrote it |
//! | [`model`] | what may be where, now and after a crash |
//! | [`rng`] | random numbers that a seed repeats |
//!
//! A roof: it assembles rings and volumes over the simulated disk, and nothing depends on it.

pub mod disk;
pub mod model;
pub mod rng;
pub mod tag;
