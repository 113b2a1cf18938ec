//! Scenarios of rings through their public interface: one test program, with a module for each subject.
//!
//! Tests that observe the whole process have programs of their own: allocations (`no_alloc.rs`), threads that the
//! kernel makes (`ordered.rs`), CPU time (`idle.rs`).

#[path = "support/patchy.rs"]
mod patchy;
mod support;
#[path = "support/thin.rs"]
mod thin;
#[path = "support/watch.rs"]
mod watch;

mod alone;
mod chains;
mod files;
mod graces;
mod help;
mod memory;
mod mixed;
mod offload;
mod options;
mod overflow;
mod ownership;
mod random;
mod records;
mod records_random;
mod refusals;
mod resources;
mod slow;
mod sockets;
mod sums;
mod times;
mod trace;
mod waits;
mod workers;
