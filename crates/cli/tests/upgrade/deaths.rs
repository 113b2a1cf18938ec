//! One of the two processes is killed at some moment of an upgrade.

use std::time::Duration;

use sheave_testkit::process;

use crate::load::Load;
use crate::rig::{ONE, Rig, until};

#[derive(Clone, Copy, PartialEq)]
enum Who {
    Old,
    New,
}

/// Kills a process after each of 15 delays from 0 to 80 ms. Afterwards one process serves, and the client has seen no
/// error; or none does, and the next one finds everything that was answered.
fn kill(who: Who) {
    let Some(mut rig) = Rig::start(ONE) else { return };
    let (mut lived, mut died) = (0, 0);
    for round in 0..15u32 {
        let load = Load::start(&rig, 0);
        load.goes_on();
        let old = rig.pid();
        let begun = rig.begin("upgrade --json");
        let victim = match who {
            Who::Old => Some(old),
            Who::New => begun.new,
        };
        // The delay picks the moment of the death; it waits for nothing.
        std::thread::sleep(Duration::from_micros(80_000 / 14) * round);
        let is_there = victim.is_some_and(|pid| rig.servers().contains(&pid));
        victim.filter(|_| is_there).into_iter().for_each(|pid| process::signal(pid, "-KILL"));
        let from = load.rounds();
        let said = begun.end();
        let (mut alive, mut serves) = (Vec::new(), false);
        until(&format!("{round}: one serves, or none is left\n{}\n{}", said.err, rig.said()), || {
            alive = rig.servers();
            serves = !load.has_ended() && load.rounds() >= from + 4;
            match alive.len() {
                0 => load.has_ended(),
                1 => serves,
                _ => false,
            }
        });
        match serves {
            true => {
                lived += 1;
                load.end_well(&rig);
                if let (Who::New, 0) = (who, said.code) {
                    assert_ne!(alive, [old], "the command has said that it was upgraded");
                }
            }
            false => {
                died += 1;
                let book = load.end();
                rig.run_again("serve --config c.toml");
                book.check(&rig);
            }
        }
        assert_eq!(rig.servers().len(), 1, "{}", rig.said());
    }
    eprintln!("{lived} daemons lived, {died} died");
    rig.upgrade();
    rig.end();
}

#[test]
fn a_new_process_that_is_killed_leaves_an_owner_or_everything_that_was_answered() {
    kill(Who::New);
}

#[test]
fn an_old_process_that_is_killed_leaves_an_owner_or_everything_that_was_answered() {
    kill(Who::Old);
}
