//! `sheave serve`: what its arguments ask of [`sheave_daemon`].

use sheave_daemon::config::One;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::whole::search_also;
use sheave_daemon::run::{self, Overrides};
use sheave_daemon::tls::TlsPlan;
use sheave_serve::TlsFiles;

use crate::args::serve::{ServeArgs, TlsMode};

/// Does it.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    search_also(&args.search);
    let code = match (&args.config, &args.spec) {
        (Some(path), _) => run::configured(path, overrides(args))?,
        (None, Some(spec)) => run::one(&one(args, spec))?,
        (None, None) => return Err(Failure::usage("nothing is to be served").fix("name a volume, or --config FILE")),
    };
    if code == 0 { Ok(()) } else { Err(Failure::command_ended(code)) }
}

fn overrides(args: &ServeArgs) -> Overrides {
    Overrides { log: args.log, standby: args.standby, web: args.web.clone() }
}

fn tls(args: &ServeArgs) -> Option<TlsPlan> {
    let (certificate, key) = (args.tls_cert.clone()?, args.tls_key.clone()?);
    let required = match args.tls.unwrap_or(TlsMode::Require) {
        TlsMode::Off => return None,
        TlsMode::Allow => false,
        TlsMode::Require => true,
    };
    let files = TlsFiles { certificate, key, client_ca: args.tls_ca.clone(), allow: args.tls_allow.clone() };
    Some(TlsPlan { listen: Vec::new(), required, files: Some(files) })
}

fn one(args: &ServeArgs, spec: &str) -> One {
    One {
        spec: spec.to_owned(),
        listen: args.nbd.clone(),
        tls: tls(args),
        read_only: args.read_only,
        limit: args.limit,
        name: args.name.clone(),
        run: args.run.clone(),
        threads: args.threads,
        max_clients: args.max_clients,
        control: args.control.clone(),
        web: args.web.clone(),
        log: args.log.unwrap_or_default(),
    }
}
