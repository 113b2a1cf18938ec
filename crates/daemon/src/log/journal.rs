//! The journal of systemd: a datagram an event, with its fields by name.
//!
//! The form is that of systemd's "Native Journal Protocol": `NAME=value` and a newline, for values without newlines;
//! ours have none (L3).

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use super::line::Line;

/// Where it listens.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// The journal.
pub(super) struct Journal(UnixDatagram);

/// Whether stderr goes to the journal, by what systemd says of it.
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

    /// Tells it; `place` is that of the level.
    pub(super) fn send(&self, place: u8, line: &Line) -> io::Result<()> {
        self.0.send(datagram(place, line).as_bytes()).map(drop)
    }
}

/// The text of an event. Names of fields are capital letters there; ours get a prefix of their own.
pub(super) fn datagram(place: u8, line: &Line) -> String {
    // Of syslog: 3 is an error, 4 a warning, 6 information, 7 for debugging.
    let priority = [3, 3, 4, 6, 7][usize::from(place.min(4))];
    let mut text = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=sheave\nMESSAGE={}\n", line.message);
    for (name, value) in &line.fields {
        // Names in the code are of letters and `_`; a dot of a nested one is no letter of the journal's.
        text += &format!("SHEAVE_{}={value}\n", name.to_ascii_uppercase().replace('.', "_"));
    }
    text
}
