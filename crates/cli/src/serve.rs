//! `sheave serve`: a volume, snapshot or device over NBD, until Ctrl-C or the end of a command.
//!
//! Owns the order of start and end: what is served is opened, then the sockets, then the reactors; at the end no client
//! is served any more before the pool is closed, so that all that was acknowledged is in it.

mod captive;
mod subject;

use sheave_load::signals::Ender;
use sheave_serve::{Exports, Listener, ServeError, Server, ServerOptions};

use self::captive::Captive;
use self::subject::Subject;
use crate::args::serve::ServeArgs;
use crate::failure::Failure;
use crate::output;

/// Does it.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let ender = Ender::new()?;
    let subject = Subject::open(args)?;
    let served = serve(args, &subject, &ender);
    let closed = subject.close();
    let code = served?;
    closed?;
    if code == 0 { Ok(()) } else { Err(Failure::command_ended(code)) }
}

/// Serves until the end; the exit code.
fn serve(args: &ServeArgs, subject: &Subject, ender: &Ender) -> Result<u8, Failure> {
    let mut addresses = args.nbd.clone();
    let directory = if addresses.is_empty() { Some(captive::private_directory()?) } else { None };
    addresses.extend(directory.iter().map(captive::Directory::address));
    let listeners = addresses.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>().map_err(failure)?;
    let names: Vec<String> = listeners.iter().map(|listener| listener.uri(subject.export_name())).collect();
    let mut options = ServerOptions { max_clients: args.max_clients, ..ServerOptions::default() };
    if let Some(threads) = args.threads {
        options.reactors = usize::from(threads);
    }
    let exports = Exports::new(vec![subject.export(args)]);
    let notices = Box::new(|text: &str| output::say(format_args!("sheave: {text}\n")));
    let server = Server::start(exports, listeners, options, notices).map_err(failure)?;
    let code = match &args.run {
        None => {
            for name in &names {
                output::say(format_args!("serving {} at {name}; Ctrl-C ends it\n", subject.describe()));
            }
            ender.wait().map_err(captive::ender_failed)?;
            0
        }
        Some(command) => {
            let captive = Captive::start(command, &names[0], ender)?;
            captive.wait(ender)?
        }
    };
    server.stop().map_err(failure)?;
    Ok(code)
}

/// What a server refuses: the cause, then the fix.
fn failure(error: ServeError) -> Failure {
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
