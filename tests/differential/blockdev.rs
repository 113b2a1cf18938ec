//! A real file as the kernel's side of the comparison: behind a loop block device if that is permitted.
//!
//! A block device has the semantics that Sheave gives to every device (fixed size, nothing beyond the end). Without the
//! right to set up a loop device the kernel reads and writes a preallocated regular file, and the generator keeps away
//! from the end of the device, where files and devices differ.
#![allow(unsafe_code)] // Loop devices are set up with ioctls.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sheave_base::buf::Buf;

use crate::program::{BLOCK, DEVICE_BYTES};

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_config` of the kernel's loop interface.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// A file of [`DEVICE_BYTES`], opened for direct I/O; removed when dropped.
pub struct BlockDev {
    /// The file or block device that the ring reads and writes.
    pub file: File,
    /// True behind a loop device, false on the regular file itself.
    pub is_block_device: bool,
    backing: PathBuf,
}

impl BlockDev {
    /// Makes the backing file in `dir`, and a loop device on it if that is possible.
    pub fn create(dir: &Path, name: &str) -> io::Result<Self> {
        let backing = dir.join(format!("{name}-{}.img", std::process::id()));
        let plain = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&backing)?;
        plain.write_all_at(&vec![0u8; DEVICE_BYTES as usize], 0)?;
        plain.sync_all()?;
        match attach_loop(&plain) {
            Ok(file) => Ok(BlockDev { file, is_block_device: true, backing }),
            Err(error) => {
                let what = "comparing with a regular file, away from its end";
                sheave_testkit::skip(&format!("no loop device ({error}; needs root): {what}"));
                let file = open_direct(&backing)?;
                Ok(BlockDev { file, is_block_device: false, backing })
            }
        }
    }

    pub fn write_all(&self, bytes: &[u8]) {
        let mut buf = Buf::zeroed(bytes.len(), 4096).expect("memory for the device's bytes");
        buf.copy_from_slice(bytes);
        self.file.write_all_at(&buf, 0).expect("fill the kernel's device");
    }

    pub fn read_all(&self) -> Vec<u8> {
        let mut buf = Buf::zeroed(DEVICE_BYTES as usize, 4096).expect("memory for the device's bytes");
        self.file.read_exact_at(&mut buf, 0).expect("read the kernel's device");
        buf.to_vec()
    }
}

impl Drop for BlockDev {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.backing);
    }
}

fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Binds `backing` to a free loop device that goes away with its last descriptor.
fn attach_loop(backing: &File) -> io::Result<File> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let mut last = io::Error::other("no free loop device");
    for _ in 0..16 {
        // SAFETY: this ioctl takes no argument and gives a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let device = open_direct(Path::new(&format!("/dev/loop{number}")))?;
        let config = LoopConfig {
            fd: backing.as_raw_fd() as u32,
            block_size: BLOCK as u32,
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
            names: [0; 160],
            init: [0; 2],
            reserved: [0; 8],
        };
        // SAFETY: `config` has the layout that LOOP_CONFIGURE reads and lives until the call returns.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &config) } == 0 {
            return Ok(device);
        }
        last = io::Error::last_os_error(); // EBUSY: somebody else took the number in between
    }
    Err(last)
}
