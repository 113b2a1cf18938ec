//! `sheave upgrade`: starts the new process, and brings it together with the old one.
//!
//! The processes do the rest by themselves ([`sheave_daemon::upgrade`]); this command waits for the outcome, which the
//! new one prints to its stdout, a pipe.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sheave_daemon::api::types as t;
use sheave_daemon::failure::Failure;
use sheave_daemon::upgrade::plan;

use super::commands::connect;
use crate::args::upgrade::UpgradeArgs;
use crate::output::{self, plain};

/// Time for an upgrade: more than both processes wait for each other.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longest line that the new process prints.
const LINE_BYTES: u64 = 64 << 10;

/// What would be taken over, and what is in the way.
#[derive(Serialize)]
struct PlanJson {
    /// Version of the running server.
    from: String,
    /// Version of this program.
    to: &'static str,
    pid: u32,
    config: PathBuf,
    pools: Vec<String>,
    exports: Vec<String>,
    clients: u64,
    /// Of these, clients that use TLS and are disconnected.
    clients_with_tls: u64,
    refused: Vec<RefusedJson>,
}

#[derive(Serialize)]
struct RefusedJson {
    cause: String,
    fix: Option<String>,
}

/// The line that the new process prints.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    TakenOver { pid: u32, clients: u64, paused_ms: u64 },
    Failed { cause: String, fix: Option<String> },
}

/// Runs the command.
pub fn run(args: &UpgradeArgs) -> Result<(), Failure> {
    let remote = connect(args.control.as_deref())?;
    let old: t::UpgradePlan = remote.call("PlanUpgrade", &t::Nothing {})?;
    let config = args.config.clone().or_else(|| old.config.as_ref().map(PathBuf::from)).unwrap_or_default();
    let config = std::path::absolute(&config).unwrap_or(config);
    let mut refused = plan::check(&old, &config);
    refused.extend(other_unit(&old));
    if args.dry_run {
        return tell_plan(args, old, config, refused);
    }
    if !refused.is_empty() {
        let all = refused.len();
        let first = refused.swap_remove(0);
        return Err(match all {
            1 => first,
            _ => first.but(&format!("{} more reasons: sheave upgrade --dry-run", all - 1)),
        });
    }
    let begun = Instant::now();
    let failed = |error: std::io::Error| Failure::run(format!("cannot start the new process: {error}"));
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut new = plan::command(&old, &config).map_err(failed)?;
    new.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::piped());
    let mut new = new.spawn().map_err(failed)?;
    // If the connection ends without a reply, the new process tells the outcome.
    if let Err(why) = remote.last_call("BeginUpgrade", &t::Nothing {}, &[ours.as_fd()]) {
        // Fails if it has ended.
        let _ = new.kill();
        let _ = new.wait();
        return Err(why);
    }
    drop(ours);
    match outcome(&mut new) {
        Some(Outcome::TakenOver { pid, clients, paused_ms }) => {
            let took_ms = begun.elapsed().as_millis() as u64;
            if args.json {
                let json = serde_json::json!({
                    "done": "upgraded", "from": old.version, "to": env!("CARGO_PKG_VERSION"), "pid": pid,
                    "clients": clients, "paused_ms": paused_ms, "took_ms": took_ms,
                });
                return output::json(&json);
            }
            output::text(&format!(
                "process {pid} serves in the place of process {}: {clients} clients waited for {paused_ms} ms\n",
                old.pid
            ));
            Ok(())
        }
        Some(Outcome::Failed { cause, fix }) => {
            let failure = Failure::run(cause);
            Err(fix.into_iter().fold(failure, Failure::fix))
        }
        None => {
            let status = new.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(Failure::run(format!("the new process has ended ({status}), and the old server goes on"))
                .fix("see the log of the server"))
        }
    }
}

/// Waits for the line that the new process prints; `None` if it ends without one. A new process that says nothing for
/// long is ended: it has taken nothing, since it prints the line at once when it has.
fn outcome(new: &mut Child) -> Option<Outcome> {
    let out = new.stdout.take()?;
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        // An error means that no line came. The receiver may have given up.
        let _ = BufReader::new(out.take(LINE_BYTES)).read_line(&mut line);
        let _ = tell.send(line);
    });
    match told.recv_timeout(PATIENCE) {
        Ok(line) => serde_json::from_str(&line).ok(),
        Err(_) => {
            // Fails if it has ended.
            let _ = new.kill();
            None
        }
    }
}

/// Returns a refusal if systemd runs the old process, and would not count the new one as its successor.
fn other_unit(old: &t::UpgradePlan) -> Option<Failure> {
    old.environment.get("NOTIFY_SOCKET")?;
    let group = |of: &str| std::fs::read_to_string(Path::new("/proc").join(of).join("cgroup")).ok();
    if group("self") == group(&old.pid.to_string()) {
        return None;
    }
    Some(
        Failure::run("systemd runs the server, and would take a process outside of its unit for another service").fix(
            "run the upgrade inside of the unit (docs/operate/upgrade.md), or restart it: systemctl restart sheave",
        ),
    )
}

fn tell_plan(args: &UpgradeArgs, old: t::UpgradePlan, config: PathBuf, refused: Vec<Failure>) -> Result<(), Failure> {
    let makes_no_sense = refused.iter().any(Failure::is_usage);
    let refused: Vec<RefusedJson> = refused
        .iter()
        .map(|why| RefusedJson { cause: why.cause().into(), fix: why.how_to_mend().map(str::to_owned) })
        .collect();
    let is_refused = !refused.is_empty();
    let plan = PlanJson {
        from: old.version,
        to: env!("CARGO_PKG_VERSION"),
        pid: old.pid,
        config,
        pools: old.pools.into_iter().map(|pool| pool.name).collect(),
        exports: old.exports.into_iter().map(|export| export.name).collect(),
        clients: old.clients,
        clients_with_tls: old.clients_with_tls,
        refused,
    };
    if args.json {
        output::json(&plan)?;
    } else {
        output::text(&in_words(&plan));
    }
    match (is_refused, makes_no_sense) {
        (false, _) => Ok(()),
        (true, false) => Err(Failure::reported()),
        (true, true) => Err(Failure::reported_usage()),
    }
}

fn in_words(plan: &PlanJson) -> String {
    let names = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => plain(&names.join(", ")).to_string(),
    };
    let mut text = format!(
        "server      process {}, sheave {} (this is {})\nconfig      {}\npools       {}\n\
         exports     {}\nclients     {}",
        plan.pid,
        plain(&plan.from),
        plan.to,
        plan.config.display(),
        names(&plan.pools),
        names(&plan.exports),
        plan.clients,
    );
    if plan.clients_with_tls > 0 {
        text += &format!("; {} use TLS and will have to connect again", plan.clients_with_tls);
    }
    text.push('\n');
    for refused in &plan.refused {
        text += &format!("in the way  {}\n", plain(&refused.cause));
        refused.fix.iter().for_each(|fix| text += &format!("   fix: {}\n", plain(fix)));
    }
    text += if plan.refused.is_empty() { "nothing is in the way\n" } else { "the server would go on as it is\n" };
    text
}
