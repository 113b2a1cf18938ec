//! The drivers of the block layer: one module each; a driver ends what the queue hands it, and knows no ring.

pub mod host;
