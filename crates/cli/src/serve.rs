//! `sheave serve`: passes its arguments to [`sheave_daemon`].

use std::path::Path;

use sheave_daemon::check::{self, Grade, Report};
use sheave_daemon::config::{One, Overrides, listen};
use sheave_daemon::failure::Failure;
use sheave_daemon::place::whole::search_also;
use sheave_daemon::run;
use sheave_daemon::tls::TlsPlan;
use sheave_daemon::vhost_user::VhostUserPlan;
use sheave_serve::TlsFiles;

use crate::args::serve::{ServeArgs, TlsMode};
use crate::output;

/// Runs the command.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    search_also(&args.search);
    let code = match (&args.config, &args.spec) {
        (Some(path), _) if args.check => return checked(args, path),
        (Some(path), _) => run::configured(path, overrides(args), args.take_over)?,
        (None, Some(spec)) => run::one(&one(args, spec)?)?,
        (None, None) => return Err(Failure::usage("nothing is to be served").fix("name a volume, or --config FILE")),
    };
    if code == 0 { Ok(()) } else { Err(Failure::command_ended(code)) }
}

/// Checks a configuration, and prints the findings.
fn checked(args: &ServeArgs, path: &Path) -> Result<(), Failure> {
    let report = check::configuration(path, &overrides(args))?;
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&in_words(&report));
    }
    match report.worst() {
        None | Some(Grade::Warning) => Ok(()),
        Some(Grade::Unserved) => Err(Failure::reported()),
        Some(Grade::Error) => Err(Failure::reported_usage()),
    }
}

fn in_words(report: &Report) -> String {
    use std::fmt::Write;
    let config = report.config.display();
    let mut text = String::new();
    // Writing to a string never fails.
    report.listen.iter().for_each(|address| _ = writeln!(text, "listens on {address}"));
    report.pools.iter().for_each(|pool| _ = writeln!(text, "pool {pool}"));
    for export in &report.exports {
        let read_only = if export.read_only { ", read-only" } else { "" };
        let limit = export.limit.as_ref().map_or(String::new(), |limit| format!(", {limit}"));
        let allow = export.allow.as_ref().map_or(String::new(), |rules| format!(", for {}", rules.join(" or ")));
        let vhost_user = export.vhost_user.as_ref();
        let vhost_user = vhost_user.map_or(String::new(), |path| format!(", vhost-user at {}", path.display()));
        let _ = writeln!(text, "export {}: {}{read_only}{limit}{allow}{vhost_user}", export.name, export.of);
    }
    for finding in &report.findings {
        let line = finding.line.map_or(String::new(), |line| format!(", line {line}"));
        let grade = match finding.grade {
            Grade::Error => "error",
            Grade::Unserved => "not served",
            Grade::Warning => "warning",
        };
        let _ = writeln!(text, "{config}{line}: {grade}: {}", finding.cause);
        finding.fix.iter().for_each(|fix| _ = writeln!(text, "   fix: {fix}"));
    }
    let verdict = match report.worst() {
        None => "all of it would be served",
        Some(Grade::Warning) => "all of it would be served, with warnings",
        Some(Grade::Unserved) => "some of it would not be served",
        Some(Grade::Error) => "no daemon starts with it",
    };
    let _ = writeln!(text, "{config}: {verdict}");
    text
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

fn one(args: &ServeArgs, spec: &str) -> Result<One, Failure> {
    let (mode, owner, group) = (args.socket_mode, args.socket_owner.as_deref(), args.socket_group.as_deref());
    let access = listen::access(mode, owner, group).map_err(Failure::usage)?;
    let (queues, in_order) = (args.vhost_queues, args.vhost_in_order);
    let vhost_user = args.vhost_user.clone().map(|path| VhostUserPlan { path, access, queues, in_order, passed: None });
    Ok(One {
        spec: spec.to_owned(),
        listen: args.nbd.clone(),
        vhost_user,
        access,
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
    })
}
