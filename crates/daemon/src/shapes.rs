//! What programs are told of pools and volumes, by `--json` and over the control socket.

pub mod extent;
pub mod pool;
pub mod report;
pub mod volume;
