//! The journal of systemd: one datagram for each event, with named fields.
//!
//! The format is systemd's "Native Journal Protocol": `NAME=value` and a newline, for values without newlines, which
//! ours never have (L3).

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use super::line::Line;

pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// A connection to the journal.
pub(super) struct Journal(UnixDatagram);

/// Returns true if stderr is connected to the journal, according to `$JOURNAL_STREAM`.
pub(super) fn has_stderr() -> bool {
    let Ok(told) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = std::io::stderr();
    rustix::fs::fstat(stderr.as_fd()).is_ok_and(|stat| told == format!("{}:{}", stat.st_dev, stat.st_ino))
}

impl Journal {
    pub(super) fn connect(path: impl AsRef<Path>) -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok(Journal(socket))
    }

    /// Sends an event; `place` is the index of its level.
    pub(super) fn send(&self, place: u8, line: &Line) -> io::Result<()> {
        self.0.send(datagram(place, line).as_bytes()).map(drop)
    }
}

/// Formats an event. Field names of the journal are upper-case; ours have the prefix `SHEAVE_`.
pub(super) fn datagram(place: u8, line: &Line) -> String {
    // Priorities of syslog: 3 is an error, 4 a warning, 6 information, 7 debugging.
    let priority = [3, 3, 4, 6, 7][usize::from(place.min(4))];
    let mut text = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=sheave\nMESSAGE={}\n", line.message);
    for (name, value) in &line.fields {
        // Field names of `tracing` consist of letters, `_` and dots; the journal does not allow dots.
        text += &format!("SHEAVE_{}={value}\n", name.to_ascii_uppercase().replace('.', "_"));
    }
    text
}
