//! Addresses of sockets, in the form that the kernel reads.
//!
//! Owns the conversion from the standard library's types. Called by drivers that connect.
#![allow(unsafe_code)] // a structure of the kernel's, filled with zeroes

use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net;

/// Address of a socket to connect to: IP or Unix.
#[derive(Clone)]
pub struct Address {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Address {
    /// Makes an address of the bytes `rest` behind the family.
    fn new(family: i32, rest: &[u8]) -> Address {
        // SAFETY: the structure is of integers alone, for which zeroes are right.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let room = size_of::<libc::sockaddr_storage>() - size_of::<libc::sa_family_t>();
        let rest = &rest[..rest.len().min(room)];
        storage.ss_family = family as libc::sa_family_t;
        let behind = (&raw mut storage).cast::<u8>().wrapping_add(size_of::<libc::sa_family_t>());
        // SAFETY: `rest` is at most as long as the part of the structure behind the family.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), behind, rest.len()) };
        Address { storage, len: (size_of::<libc::sa_family_t>() + rest.len()) as libc::socklen_t }
    }

    /// Returns the pointer and the length for the kernel.
    pub(super) fn raw(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.len)
    }
}

impl From<SocketAddr> for Address {
    fn from(of: SocketAddr) -> Address {
        let mut rest = of.port().to_be_bytes().to_vec();
        match of {
            SocketAddr::V4(of) => {
                rest.extend(of.ip().octets());
                rest.extend([0; 8]);
                Address::new(libc::AF_INET, &rest)
            }
            SocketAddr::V6(of) => {
                rest.extend(of.flowinfo().to_be_bytes());
                rest.extend(of.ip().octets());
                rest.extend(of.scope_id().to_ne_bytes());
                Address::new(libc::AF_INET6, &rest)
            }
        }
    }
}

impl From<&net::SocketAddr> for Address {
    fn from(of: &net::SocketAddr) -> Address {
        let mut rest = Vec::new();
        if let Some(path) = of.as_pathname() {
            rest.extend(path.as_os_str().as_bytes());
            rest.push(0);
        } else if let Some(name) = of.as_abstract_name() {
            rest.push(0);
            rest.extend(name);
        }
        Address::new(libc::AF_UNIX, &rest)
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Address").field("family", &self.storage.ss_family).field("len", &self.len).finish()
    }
}
