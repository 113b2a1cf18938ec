//! Numbers in memory that outlives the process.
//!
//! Owns the mapping of a file, and the only accesses to it: single numbers of 64 bits, by index. Does not own the
//! meaning of any number, nor the place of the file.
//!
//! A store is in the page cache of the kernel at once, without a system call. If the process ends at any moment, the
//! next reader of the file finds all stores that came before that moment, and none that came after it. A crash of the
//! machine may lose any of them.
//!
//! - N1: stores are neither left out nor reordered with each other by the compiler. The processor completes a store
//!   that it has begun, whatever becomes of the process.
//! - N2: a file that is cut off meanwhile reads as zeroes, and does not end the process
//!   ([`sigbus`](crate::sigbus)).
#![allow(unsafe_code)] // Memory that other processes may map as well is reached through a raw pointer.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, munmap};

#[cfg(not(any(shuttle, loom)))]
use crate::sigbus::{Guard, reserve};

/// Numbers that outlive the process.
#[derive(Debug)]
pub struct Lasting {
    /// First number; the beginning of a page.
    start: NonNull<u64>,
    /// Count of numbers, at least 1.
    len: usize,
    /// The watch over the mapping of a file.
    #[cfg(not(any(shuttle, loom)))]
    guard: Option<Guard>,
}

// SAFETY: the fields do not change before the drop. Each access is one volatile load or store of an aligned number, and
// any value that another thread or process leaves there is a valid number.
unsafe impl Send for Lasting {}
// SAFETY: as above. Callers that store from several threads order their stores by a lock of their own.
unsafe impl Sync for Lasting {}

impl Lasting {
    /// Maps `len` numbers of a file, which must be that long.
    ///
    /// # Errors
    ///
    /// Fails if the file is shorter, or if the kernel cannot map it.
    #[cfg(not(any(shuttle, loom)))]
    pub fn of_file(file: &File, len: usize) -> io::Result<Lasting> {
        let bytes = len.checked_mul(size_of::<u64>()).ok_or(io::ErrorKind::InvalidInput)?;
        if len == 0 || file.metadata()?.len() < bytes as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is too short"));
        }
        let slot = reserve()?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses an unused range of addresses, so no other memory is replaced.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, file, 0) }?;
        let guard = slot.watch(start as usize, bytes, rustix::param::page_size());
        let start = NonNull::new(start.cast()).expect("a mapping never begins at address 0");
        Ok(Lasting { start, len, guard: Some(guard) })
    }

    /// Fails: a model has no files.
    #[cfg(any(shuttle, loom))]
    pub fn of_file(_: &File, _: usize) -> io::Result<Lasting> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Allocates `len` zeroes that outlive nothing but their users, for tests and simulations of the end of a process.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory.
    pub fn in_memory(len: usize) -> io::Result<Lasting> {
        let bytes = len.max(1).checked_mul(size_of::<u64>()).ok_or(io::ErrorKind::InvalidInput)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: as in `of_file`.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) }?;
        let start = NonNull::new(start.cast()).expect("a mapping never begins at address 0");
        Ok(Lasting {
            start,
            len: len.max(1),
            #[cfg(not(any(shuttle, loom)))]
            guard: None,
        })
    }

    /// Returns the count of numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false, because there is at least one number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the number at an index.
    ///
    /// # Panics
    ///
    /// Panics if there is no such number.
    #[inline]
    #[must_use]
    pub fn get(&self, at: usize) -> u64 {
        assert!(at < self.len);
        // SAFETY: the index is within the mapping, which lives as long as `self`, and numbers are aligned in it.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// Stores the number at an index (N1).
    ///
    /// # Panics
    ///
    /// Panics if there is no such number.
    #[inline]
    pub fn put(&self, at: usize, number: u64) {
        assert!(at < self.len);
        // SAFETY: as in `get`.
        unsafe { self.start.add(at).write_volatile(number) }
    }

    /// Stores numbers one after the other, from the one at an index on (N1).
    ///
    /// # Panics
    ///
    /// Panics if there are not so many numbers.
    #[inline]
    pub fn put_all(&self, at: usize, numbers: &[u64]) {
        assert!(at <= self.len && numbers.len() <= self.len - at);
        for (number, value) in numbers.iter().enumerate() {
            // SAFETY: all indexes are within the mapping, which lives as long as `self`; numbers are aligned in it.
            unsafe { self.start.add(at + number).write_volatile(*value) }
        }
    }

    /// Returns true if a part of the file was missing when it was accessed (N2).
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        #[cfg(not(any(shuttle, loom)))]
        return self.guard.as_ref().is_some_and(Guard::is_broken);
        #[cfg(any(shuttle, loom))]
        false
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        // The handler must not replace pages of this range after another mapping may have taken it.
        #[cfg(not(any(shuttle, loom)))]
        self.guard.iter_mut().for_each(Guard::forget);
        // SAFETY: the range was mapped by one of the constructors, and nothing borrows it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len * size_of::<u64>()) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    fn file(bytes: u64) -> (std::path::PathBuf, File) {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sheave-lasting-{}-{number}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("made");
        file.set_len(bytes).expect("sized");
        (path, file)
    }

    #[test]
    fn numbers_of_a_file_are_there_for_the_next_reader() {
        let (path, kept) = file(8192);
        assert!(Lasting::of_file(&kept, 1025).is_err() && Lasting::of_file(&kept, 0).is_err());
        let one = Lasting::of_file(&kept, 1024).expect("mapped");
        one.put(0, 7);
        one.put(1023, u64::MAX);
        drop(one);
        let other = Lasting::of_file(&kept, 1024).expect("mapped");
        assert_eq!([0, 1, 1023].map(|at| other.get(at)), [7, 0, u64::MAX]);
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_file_that_is_cut_off_reads_as_zeroes() {
        let (path, kept) = file(8192);
        let lasting = Lasting::of_file(&kept, 1024).expect("mapped");
        lasting.put(600, 7);
        assert!(!lasting.is_cut_off());
        kept.set_len(4096).expect("cut off");
        assert_eq!(lasting.get(600), 0);
        lasting.put(601, 8);
        assert!(lasting.is_cut_off());
        std::fs::remove_file(path).expect("removed");
    }

    /// N1, with a child that is killed while it stores: the numbers that it stored are 1, 2, 3 ... without a gap.
    #[test]
    fn stores_before_the_death_of_the_process_are_there() {
        const CHILD: &str = "SHEAVE_LASTING_CHILD";
        if let Some(path) = std::env::var_os(CHILD) {
            let file = OpenOptions::new().read(true).write(true).open(path).expect("opened");
            let lasting = Lasting::of_file(&file, 1 << 20).expect("mapped");
            for round in 0.. {
                (0..1 << 20).for_each(|at| lasting.put(at, (round << 20) + at as u64 + 1));
            }
        }
        let (path, kept) = file(8 << 20);
        for pause in [20, 35, 60] {
            let mut child = Command::new(std::env::current_exe().expect("a path"))
                .args(["--exact", "lasting::tests::stores_before_the_death_of_the_process_are_there"])
                .env(CHILD, &path)
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("it runs");
            let lasting = Lasting::of_file(&kept, 1 << 20).expect("mapped");
            while lasting.get(0) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(pause));
            child.kill().expect("killed");
            assert_eq!(child.wait().expect("it ends").signal(), Some(libc::SIGKILL));
            let stored: Vec<u64> = (0..1 << 20).map(|at| lasting.get(at)).collect();
            let last = (0..1 << 20).max_by_key(|at| stored[*at]).expect("some");
            let before = stored[last];
            for back in 0..(1u64 << 20).min(before) {
                let at = (last as u64 + (1 << 20) - back) as usize & ((1 << 20) - 1);
                assert_eq!(stored[at], before - back, "{back} before the last");
            }
            kept.set_len(0).and_then(|()| kept.set_len(8 << 20)).expect("emptied");
        }
        std::fs::remove_file(path).expect("removed");
    }
}
