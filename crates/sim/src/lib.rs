//! The crash simulator: a disk that forgets, a model that does not, and seeded runs that compare the two.
//!
//! | module | holds |
//! |---|---|
//! | [`disk`] | a simulated disk, its volatile cache, and what a crash leaves of it |
//! | [`sparse`] | something for each sector, of which most have nothing |
//! | [`tag`] | data that says who wrote it |
//! | [`model`] | what may be where, now and after a crash |
//! | [`engine`] | what carries requests between a volume and the disk, step by step |
//! | [`shrink`](mod@shrink) | a failure made small |
//! | [`setup`] | what a run is, drawn from its seed |
//! | [`world`] | a pool at work, and the model beside it |
//! | [`observe`](mod@observe) | what a pool holds, looked at past its I/O |
//! | [`explore`](mod@explore) | runs cut at many steps, recovered, compared |
//! | [`broken`] | what may become of a pool on a disk that breaks a promise |
//! | [`audit`](mod@audit) | the pool's numbers against its extents |
//! | [`check`](mod@check) | `check` on an image |
//! | [`corrupt`] | damage to metadata, and what must come of it |
//! | [`writer`] | a process to be killed |
//! | [`threads`] | calls that block, on threads that run one at a time |
//!
//! A roof: it assembles rings and volumes over the simulated disk, and nothing depends on it.

pub mod audit;
pub mod broken;
pub mod check;
pub mod corrupt;
pub mod disk;
pub mod engine;
pub mod explore;
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
