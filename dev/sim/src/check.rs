//! `check` on the image of a disk, without a disk.
//!
//! Owns [`ImageIo`], which gives the checker blocking I/O on an image.

use sheave_base::status::Status;
use sheave_base::sync::{Mutex, MutexGuard};
use sheave_vol::{BlockIo, CheckOptions, CheckReport, PoolError, check};

use crate::disk::{Image, SECTOR};

/// An image as a [`BlockIo`].
#[derive(Debug)]
pub struct ImageIo(Mutex<Image>);

impl ImageIo {
    #[must_use]
    pub fn new(image: Image) -> ImageIo {
        ImageIo(Mutex::new(image))
    }

    fn image(&self) -> MutexGuard<'_, Image> {
        self.0.lock().expect("no holder of the image panics")
    }
}

impl BlockIo for ImageIo {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.image().read(at / SECTOR as u64, buf);
        Ok(())
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.image().write(at / SECTOR as u64, buf);
        Ok(())
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Status> {
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.image().size_bytes()
    }
}

/// Returns the report of `check` on an image.
pub fn check_image(image: &Image) -> Result<CheckReport, PoolError> {
    check(&ImageIo::new(image.clone()), &CheckOptions::default())
}
