//! Sheave floor 2: bio, plug, request, tags, hctx, queue, statistics, drivers

pub mod driver;
pub mod kring;
