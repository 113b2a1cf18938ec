//! Failures of commands, as text for the user: the cause, then the fix.
//!
//! Every error of the command line becomes one of these. Owns the exit code. The messages of lower layers arrive as
//! text that names cause and fix already.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use sheave::DeviceError;
use sheave_load::LoadError;
use sheave_serve::ServeError;
use sheave_vol::PoolError;

/// Category of a failure, which determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The arguments or a device spec are invalid: exit code 2, as for clap's own errors.
    Usage,
    /// The arguments were valid, but the operation failed: exit code 1.
    Run,
    /// Ctrl-C stopped it, and what it had begun was undone: exit code 130.
    Interrupted,
    /// Another process or client holds something that the operation needs, and may release it: exit code 1.
    Busy,
    /// The output already explains the failure: this exit code, no message.
    Reported(u8),
    /// A command that was run for the user ended with this exit code and printed its own message.
    Command(u8),
}

/// A failure of a command.
#[derive(Clone, Debug)]
pub struct Failure {
    kind: Kind,
    cause: String,
    fix: Option<String>,
    /// Overrides the exit code of the kind.
    code: Option<u8>,
}

/// A failure as JSON.
#[derive(Debug, Serialize)]
pub struct FailureJson<'a> {
    error: ErrorJson<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorJson<'a> {
    /// `usage`, `failed` or `interrupted`.
    kind: &'static str,
    cause: &'a str,
    fix: Option<&'a str>,
    exit_code: u8,
}

impl Failure {
    /// A failure because of invalid arguments.
    pub fn usage(cause: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, cause: cause.into(), fix: None, code: None }
    }

    /// A failure of an operation.
    pub fn run(cause: impl Into<String>) -> Self {
        Self { kind: Kind::Run, cause: cause.into(), fix: None, code: None }
    }

    /// A failure because something is in use.
    pub fn busy(cause: impl Into<String>) -> Self {
        Self { kind: Kind::Busy, cause: cause.into(), fix: None, code: None }
    }

    /// Returns true if trying again later may help.
    pub fn is_busy(&self) -> bool {
        self.kind == Kind::Busy
    }

    /// Returns true if the request makes no sense, whatever is tried again.
    pub fn is_usage(&self) -> bool {
        self.kind == Kind::Usage
    }

    /// Adds to the cause how long the command has waited.
    pub fn after(self, waited: Duration) -> Self {
        Self { cause: format!("{}, also after {:.1} s", self.cause, waited.as_secs_f64()), ..self }
    }

    /// Adds to the cause what was done although the operation failed.
    pub fn but(self, done: &str) -> Self {
        Self { cause: format!("{}; {done}", self.cause), ..self }
    }

    /// A failure because of Ctrl-C.
    pub fn interrupted(cause: impl Into<String>) -> Self {
        Self { kind: Kind::Interrupted, cause: cause.into(), fix: None, code: None }
    }

    /// Sets another exit code; the message stays.
    pub fn with_code(self, code: u8) -> Self {
        Self { code: Some(code), ..self }
    }

    /// A failure that the output has already explained.
    pub fn reported() -> Self {
        Self { kind: Kind::Reported(1), cause: String::new(), fix: None, code: None }
    }

    /// A failure because of an impossible request that the output has already explained: exit code 2.
    pub fn reported_usage() -> Self {
        Self { kind: Kind::Reported(2), cause: String::new(), fix: None, code: None }
    }

    /// A failure because a command that was run for the user ended with this exit code, which is not 0.
    pub fn command_ended(code: u8) -> Self {
        Self { kind: Kind::Command(code), cause: format!("the command ended with {code}"), fix: None, code: None }
    }

    /// Sets the advice on what to do about it.
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// Exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        if let Some(code) = self.code {
            return code;
        }
        match self.kind {
            Kind::Usage => 2,
            Kind::Run | Kind::Busy => 1,
            Kind::Interrupted => 130,
            Kind::Reported(code) | Kind::Command(code) => code,
        }
    }

    /// The failure as JSON.
    pub fn json(&self) -> FailureJson<'_> {
        let kind = match self.kind {
            Kind::Usage => "usage",
            Kind::Run | Kind::Reported(_) | Kind::Busy | Kind::Command(_) => "failed",
            Kind::Interrupted => "interrupted",
        };
        FailureJson { error: ErrorJson { kind, cause: &self.cause, fix: self.fix.as_deref(), exit_code: self.code() } }
    }

    /// Advice on what to do about it.
    pub fn how_to_mend(&self) -> Option<&str> {
        self.fix.as_deref()
    }

    /// Cause and fix in one line, for the log.
    pub fn in_a_line(&self) -> String {
        match &self.fix {
            Some(fix) => format!("{}. {fix}", self.cause),
            None => self.cause.clone(),
        }
    }

    /// Name of the kind, as in messages of the control socket.
    pub fn word(&self) -> &'static str {
        match self.kind {
            Kind::Usage => "usage",
            Kind::Busy => "busy",
            Kind::Interrupted => "interrupted",
            Kind::Run | Kind::Reported(_) | Kind::Command(_) => "failed",
        }
    }

    /// Rebuilds the failure that another process reported.
    pub fn told(word: &str, cause: String, fix: Option<String>) -> Self {
        let kind = match word {
            "usage" => Kind::Usage,
            "busy" => Kind::Busy,
            "interrupted" => Kind::Interrupted,
            _ => Kind::Run,
        };
        Self { kind, cause, fix, code: None }
    }

    /// The cause alone, for reports that show the fix separately.
    pub fn cause(&self) -> &str {
        &self.cause
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self.kind, Kind::Reported(_) | Kind::Command(_)) {
            return Ok(());
        }
        writeln!(f, "sheave: {}", self.cause)?;
        match &self.fix {
            Some(fix) => writeln!(f, "   fix: {fix}"),
            None => Ok(()),
        }
    }
}

impl From<LoadError> for Failure {
    fn from(err: LoadError) -> Self {
        let kind = if err.usage { Kind::Usage } else { Kind::Run };
        Self { kind, cause: err.cause, fix: err.fix, code: None }
    }
}

/// Converts an error of a device. An invalid spec is a usage error, all others are not.
pub fn device(err: DeviceError) -> Failure {
    match err {
        DeviceError::Spec { .. } => Failure::usage(err.to_string()),
        DeviceError::Host { what, fix, source } => Failure::run(format!("{what}: {source}")).fix(fix),
        DeviceError::Claimed { what, who, fix } => Failure::busy(format!("{what} is in use: {who}")).fix(fix),
        other => Failure::run(other.to_string()),
    }
}

/// Converts an error of a pool. An invalid name or size is a usage error, all others are not.
pub fn pool(err: PoolError) -> Failure {
    match err {
        PoolError::Device(err) => device(err),
        PoolError::Invalid { what, fix } => Failure::usage(what).fix(fix),
        PoolError::Io { what, status, fix } => Failure::run(format!("{what}: {status}")).fix(fix),
        PoolError::Format { what, fix } | PoolError::Members { what, fix } => Failure::run(what).fix(fix),
        PoolError::Busy { what, who, fix } => Failure::busy(format!("{what} is in use: {who}")).fix(fix),
        PoolError::Limit { what, limit, fix } => Failure::run(format!("{what}: the limit is {limit}")).fix(fix),
        other => match other.to_string().split_once(". ") {
            Some((cause, fix)) => Failure::run(cause).fix(fix),
            None => Failure::run(other.to_string()),
        },
    }
}

/// Converts an error of the server, whose text has the cause, then the fix.
pub fn serve(error: ServeError) -> Failure {
    use sheave::RingError;
    if let ServeError::Ring(RingError::Device(sheave::DeviceError::Host { fix, .. })) = &error {
        return Failure::run(format!("serving needs io_uring: {fix}"))
            .fix("sheave doctor tells what this machine lacks");
    }
    if matches!(error, ServeError::OldKernel(_)) {
        return Failure::run(error.to_string()).fix("run Linux 6.1 or newer");
    }
    match error.to_string().split_once(". ") {
        Some((cause, fix)) => Failure::run(cause).fix(fix),
        None => Failure::run(error.to_string()),
    }
}
