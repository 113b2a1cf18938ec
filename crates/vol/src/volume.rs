//! A thin volume.
#![allow(unused_variables)]

use std::sync::Arc;

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_iomap::{File, Mapping, mapping::Intent};

use crate::{Extent, PoolError};

/// An open volume or snapshot. Clones are the same volume. To use it in a ring: `ring.attach_file(Arc::new(volume))`.
#[derive(Clone, Debug)]
pub struct Volume {
    inner: Arc<()>,
}

impl Volume {
    /// Its name, now.
    pub fn name(&self) -> String {
        unimplemented!()
    }
    /// The extents of a range, merged where they continue each other on the device; holes included.
    pub fn extents(&self, pos: u64, len: u64) -> Result<Vec<Extent>, PoolError> {
        unimplemented!()
    }
}

impl File for Volume {
    fn device(&self) -> &Device {
        unimplemented!()
    }
    fn size_bytes(&self) -> u64 {
        unimplemented!()
    }
    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        unimplemented!()
    }
}
