//! Health: a single list of all current problems, from which all reports are made.
//!
//! The log, `/metrics`, the status page, `sheave top`, `sheave status`, the status text of systemd and exit codes
//! report what is in [`Health`](crate::problems::Health), and search for nothing themselves.
//!
//! | module | holds |
//! |---|---|
//! | [`problems`](crate::problems) | problems, their kinds, and the health that they make up |
//! | [`signs`] | detection of problems of pools, exports and certificates |
//! | [`watch`] | a check twice a second, and the log of what begins and ends |
//!
//! * H1. A problem has a kind and belongs to the server, a pool, an export or a certificate file. There is at most one
//!   of a kind for each of them, so a lasting problem is reported once, with the time at which it began.
//! * H2. A problem has a cause and a fix.
//! * H3. A condition that begins and ends between two checks is still reported, because pools and devices count its
//!   occurrences.
//! * H4. Reading the health never blocks on storage. If the checking thread itself blocks, that is a problem too
//!   ([`Health::now`](crate::problems::Health::now)).

mod signs;
pub(crate) mod watch;
