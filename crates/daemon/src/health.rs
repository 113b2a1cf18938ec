//! Health: everything that is wrong with what the daemon serves, in one list, from which all reports are made.
//!
//! The log, `/metrics`, the status page, `sheave top`, `sheave status`, the status text of systemd and exit codes tell
//! what [`Health`](crate::problems::Health) has, and look for nothing themselves.
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | problems, their kinds, and the health that they make |
//! | [`signs`] | finds the problems of pools, exports and certificates |
//! | [`watch`] | looks twice a second, and tells what begins and what is over |
//!
//! * H1. A problem has a kind and belongs to the server, a pool, an export or a file of certificates. There is at most
//!   one of a kind for each of them, so a problem that lasts is told once, with the time at which it began.
//! * H2. A problem names its cause and its fix.
//! * H3. What came and went between two looks is told all the same: pools and devices count how often it happened.
//! * H4. Whoever reads the health waits for no storage. When the thread that looks waits for one itself, that is a
//!   problem too ([`Health::now`](crate::problems::Health::now)).

mod signs;
pub(crate) mod watch;
