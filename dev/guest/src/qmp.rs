//! A client of QMP, QEMU's control protocol: one JSON object a line.
//!
//! Owns the connection. Other programs of QEMU, such as qemu-storage-daemon, have the same protocol. Replies are
//! returned as text, because callers only compare a word of them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Longest time until a reply or an event comes.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
    /// Events that came while a reply was awaited.
    events: Vec<String>,
}

impl Qmp {
    /// Connects to a server that listens at `path`.
    ///
    /// # Errors
    ///
    /// Fails if no server of QMP answers there.
    pub fn connect(path: &Path) -> Result<Qmp> {
        let stream = UnixStream::connect(path).context("connecting to QMP")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut qmp = Qmp { reader: BufReader::new(stream), events: Vec::new() };
        let greeting = qmp.line()?;
        ensure!(greeting.starts_with("{\"QMP\""), "not a QMP server: {greeting}");
        qmp.execute("qmp_capabilities", "{}")?;
        Ok(qmp)
    }

    /// Runs a command with its arguments, a JSON object. Returns the reply.
    ///
    /// # Errors
    ///
    /// Fails if QEMU refuses the command, has ended, or is silent for a minute.
    pub fn execute(&mut self, command: &str, arguments: &str) -> Result<String> {
        let line = format!("{{\"execute\": \"{command}\", \"arguments\": {arguments}}}\n");
        self.reader.get_mut().write_all(line.as_bytes())?;
        loop {
            let line = self.line()?;
            if is_event(&line) {
                self.events.push(line);
            } else if line.starts_with("{\"error\"") {
                bail!("QEMU refuses {command} {arguments}: {line}");
            } else {
                return Ok(line);
            }
        }
    }

    /// Waits for an event whose text contains all `words`. Returns the event.
    ///
    /// # Errors
    ///
    /// Fails if QEMU has ended, or is silent for a minute.
    pub fn event(&mut self, words: &[&str]) -> Result<String> {
        let wanted = |event: &String| words.iter().all(|word| event.contains(word));
        if let Some(at) = self.events.iter().position(wanted) {
            return Ok(self.events.remove(at));
        }
        loop {
            let line = self.line().with_context(|| format!("waiting for an event with {words:?}"))?;
            if is_event(&line) && wanted(&line) {
                return Ok(line);
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.reader.read_line(&mut line)? > 0, "QEMU has ended");
        Ok(line.trim_end().to_owned())
    }
}

fn is_event(line: &str) -> bool {
    line.starts_with("{\"timestamp\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_before_a_reply_are_kept() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let mut qmp = Qmp { reader: BufReader::new(ours), events: Vec::new() };
        let said = "{\"timestamp\": {}, \"event\": \"RESET\"}\n{\"return\": 1}\n{\"error\": {\"class\": \"x\"}}\n";
        theirs.write_all(said.as_bytes()).expect("written");
        assert_eq!(qmp.execute("a", "{}").expect("a reply"), "{\"return\": 1}");
        assert!(qmp.execute("b", "{}").unwrap_err().to_string().contains("QEMU refuses b"));
        assert!(qmp.event(&["RESET"]).is_ok());
        drop(theirs);
        assert!(qmp.event(&["RESET"]).is_err());
    }
}
