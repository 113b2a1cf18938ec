//! One owner at a time: within this program, by the devices' queues.
//!
//! Owns the list of devices under open pools. Other programs are kept off by the driver.

use std::sync::{Mutex, PoisonError};

use sheave_base::sync::Arc;
use sheave_blk::Device;

use crate::PoolError;

static OPEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The right to write to a device as a pool, until it is dropped.
#[derive(Debug)]
pub(crate) struct Owner {
    queues: Vec<usize>,
}

/// Takes the device, or says who has it.
pub(crate) fn claim(device: &Device) -> Result<Owner, PoolError> {
    let queues: Vec<usize> = device.legs().iter().map(|leg| Arc::as_ptr(&leg.queue).addr()).collect();
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if queues.iter().any(|queue| open.contains(queue)) {
        return Err(PoolError::Busy {
            what: format!("the device {}", device.name()),
            who: "this program has a pool open on it".into(),
            fix: "Close that one first".into(),
        });
    }
    open.extend(&queues);
    Ok(Owner { queues })
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in &self.queues {
            if let Some(at) = open.iter().position(|open| open == queue) {
                open.swap_remove(at);
            }
        }
    }
}
