//! The crash simulator: a simulated disk that loses what was not flushed, a model of the durability contract, and
//! seeded runs that compare a pool with the model.
//!
//! | module | holds |
//! |---|---|
//! | [`disk`] | a simulated disk, its volatile cache, and what a crash leaves of it |
//! | [`sparse`] | a map from sectors to values, most of which have none |
//! | [`tag`] | data that names the write it came from |
//! | [`model`] | the values that each sector may hold, now and after a crash |
//! | [`engine`] | drivers of requests between a volume and the disk, step by step |
//! | [`shrink`](mod@shrink) | the reduction of a failing run to fewer operations |
//! | [`setup`] | the parameters of a run, drawn from its seed |
//! | [`world`] | a pool at work, and the model beside it |
//! | [`observe`](mod@observe) | a pool's contents, read past its I/O path |
//! | [`explore`](mod@explore) | runs cut at many steps, recovered, compared |
//! | [`broken`] | pools on a disk that breaks a promise, judged on a scale |
//! | [`audit`](mod@audit) | the pool's space figures compared with its extents |
//! | [`check`](mod@check) | `check` on an image |
//! | [`handover`] | upgrades of a daemon, both processes cut at any step |
//! | [`corrupt`] | damage to metadata, and the outcomes that are allowed |
//! | [`writer`] | a writing process that a test kills |
//! | [`threads`] | blocking calls, on threads of which one runs at a time |
//!
//! It is a roof: it assembles rings and volumes over the simulated disk, and nothing depends on it.

pub mod audit;
pub mod broken;
pub mod check;
pub mod corrupt;
pub mod disk;
pub mod engine;
pub mod explore;
pub mod handover;
pub mod model;
pub mod observe;
pub mod setup;
pub mod shrink;
pub mod sparse;
pub mod tag;
pub mod tally;
pub mod threads;
pub mod world;
pub mod writer;
