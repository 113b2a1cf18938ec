//! JSON of pools and volumes, for `--json` and the control socket.

pub mod extent;
pub mod pool;
pub mod report;
pub mod volume;
