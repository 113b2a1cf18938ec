//! `sheave serve`: what its arguments ask of [`sheave_daemon`].

use sheave_daemon::config::One;
use sheave_daemon::failure::Failure;
use sheave_daemon::run;

use crate::args::serve::ServeArgs;

/// Does it.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let code = match (&args.config, &args.spec) {
        (Some(path), _) => run::configured(path)?,
        (None, Some(spec)) => run::one(&one(args, spec))?,
        (None, None) => return Err(Failure::usage("nothing is to be served").fix("name a volume, or --config FILE")),
    };
    if code == 0 { Ok(()) } else { Err(Failure::command_ended(code)) }
}

fn one(args: &ServeArgs, spec: &str) -> One {
    One {
        spec: spec.to_owned(),
        listen: args.nbd.clone(),
        read_only: args.read_only,
        name: args.name.clone(),
        run: args.run.clone(),
        threads: args.threads,
        max_clients: args.max_clients,
        control: args.control.clone(),
    }
}
