//! Sheave's ring as a [`Target`]: the same raw SQEs on a device named by a spec.
#![allow(unsafe_code)] // Raw SQEs are pushed; the memory they name is owned here or by the program's image.

use std::path::PathBuf;
use std::time::Duration;

use sheave::raw::Sqe;
use sheave::{Buf, Device, Fd, Ring, op, open_device};

use crate::abi::RawSqe;
use crate::program::{ARENA_BYTES, DEVICE_BYTES, FIXED_FILES, Places, Shape};
use crate::run::{Bytes, Cqe, Target};

/// The target: one Sheave ring after the other on the same device.
///
/// S1: `arena` outlives every ring (it is declared after it); registered buffers belong to the ring.
pub struct Sheave {
    name: String,
    ring: Option<Ring>,
    device: Device,
    arena: Buf,
    /// Removed when dropped.
    backing: Option<PathBuf>,
}

impl Sheave {
    pub fn new(spec: &str) -> Self {
        let device = open_device(spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
        assert_eq!(device.size_bytes(), DEVICE_BYTES, "{spec}");
        let arena = Buf::zeroed(ARENA_BYTES as usize, 4096).expect("memory for the test");
        Sheave { name: format!("Sheave on {spec}"), ring: None, device, arena, backing: None }
    }

    /// Makes a target on a file of its own.
    pub fn on_file(dir: &std::path::Path, name: &str) -> Self {
        let path = dir.join(format!("{name}-{}.img", std::process::id()));
        std::fs::write(&path, vec![0u8; DEVICE_BYTES as usize]).expect("a file for Sheave's side");
        let spec = format!("file:{}", path.display());
        let mut target = Sheave::new(&spec);
        target.backing = Some(path);
        target
    }

    /// Attaches one more device to the open ring. Returns its descriptor.
    pub fn attach(&mut self, spec: &str) -> i32 {
        let device = open_device(spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
        self.ring().attach(&device).expect("attach the device").raw()
    }

    fn ring(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("the ring is open between open and close")
    }

    /// Runs one operation on a ring of its own, which must succeed. Returns its buffer.
    fn transfer<O: op::Op>(&self, make: impl FnOnce(Fd) -> O) -> Buf {
        let mut ring = Ring::builder().entries(8).build().expect("a ring to fill and read the device");
        let fd = ring.attach(&self.device).expect("attach the device");
        ring.push(make(fd)).expect("an empty SQ takes one entry");
        ring.submit_and_wait(1).expect("submit");
        let completion = ring.completions().next().expect("waited for it");
        assert_eq!(completion.res as u64, DEVICE_BYTES, "whole-device transfer on {}", self.name);
        completion.into_buf().expect("an operation gives its buffer back")
    }
}

fn buf_of(bytes: &[u8]) -> Buf {
    let mut buf = Buf::zeroed(bytes.len(), 4096).expect("memory for the test");
    buf.copy_from_slice(bytes);
    buf
}

impl Target for Sheave {
    fn name(&self) -> &str {
        &self.name
    }

    fn has_bytes(&self) -> bool {
        !self.name.contains("null:")
    }

    fn open(&mut self, shape: Shape, bytes: &Bytes) -> Places {
        let image = buf_of(&bytes.device);
        self.transfer(|fd| op::write(fd, image));
        self.arena.copy_from_slice(&bytes.arena);
        let mut ring =
            Ring::builder().entries(shape.entries).cq_entries(shape.cq_entries).in_flight(256).build().expect("a ring");
        let device = ring.attach(&self.device).expect("attach the device");
        let handle = ring.handle();
        let itself = ring.attach_ring(&handle).expect("there is room");
        let files = FIXED_FILES.map(|used| if used { device } else { Fd::NONE });
        ring.register_files(&files).expect("register files");
        ring.register_buffers(bytes.fixed.iter().map(|bytes| buf_of(bytes)).collect()).expect("register buffers");
        let base = |slot| ring.buffer_range(slot).expect("the buffer was registered").0;
        let places = Places {
            arena: self.arena.as_mut_ptr() as u64,
            fixed: [base(0), base(1)],
            device_fd: device.raw(),
            ring_fd: itself.raw(),
        };
        self.ring = Some(ring);
        places
    }

    fn submit(&mut self, sqes: &[RawSqe]) -> u32 {
        let ring = self.ring();
        for raw in sqes {
            let sqe = Sqe {
                opcode: raw.opcode,
                flags: raw.flags,
                ioprio: raw.ioprio,
                fd: raw.fd,
                off: raw.off,
                addr: raw.addr,
                len: raw.len,
                op_flags: raw.op_flags,
                user_data: raw.user_data,
                buf_index: raw.buf_index,
                personality: raw.personality,
                splice_fd_in: raw.splice as i32,
                addr3: raw.addr3,
                pad2: raw.pad,
            };
            // SAFETY: what the SQE points to belongs to this target (S1), to the ring, or to the image of the
            // running program.
            assert!(unsafe { ring.push_sqe(&sqe) }, "batches fit into the SQ");
        }
        ring.submit().unwrap_or(0)
    }

    fn reap(&mut self, out: &mut Vec<Cqe>, patience: Duration) {
        let ring = self.ring();
        let _ = ring.wait(1, Some(patience));
        out.extend(ring.completions().map(|c| Cqe { user_data: c.user_data, res: c.res, flags: c.flags.bits() }));
    }

    fn overflowed(&mut self) -> bool {
        self.ring().cq_overflowed()
    }

    fn close(&mut self) -> Bytes {
        let mut ring = self.ring.take().expect("the ring is open between open and close");
        while ring.in_flight() > 0 {
            ring.cancel(op::Cancel::everything()).expect("nothing to cancel is fine");
            ring.completions().for_each(drop);
            let _ = ring.wait(1, Some(Duration::from_millis(1)));
        }
        let fixed = [0, 1].map(|slot| ring.buffer(slot).expect("no request is left that uses it").to_vec());
        drop(ring);
        let image = Buf::zeroed(DEVICE_BYTES as usize, 4096).expect("memory for the test");
        Bytes { arena: self.arena.to_vec(), fixed, device: self.transfer(|fd| op::read(fd, image)).to_vec() }
    }
}

impl Drop for Sheave {
    fn drop(&mut self) {
        if let Some(path) = &self.backing {
            let _ = std::fs::remove_file(path);
        }
    }
}
